"""A prompt in one block, in odd blocks, token by token, restored, forked and shifted: the families
where it matters.

All of them see windows, or stretch positions beyond the context they were trained for, within these
few tokens. What the prompt in one block must be is what the family's twin computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import Model, Session
from engine.saved_state import StateWriter, restore_state
from tests.engine import architectures, tiny_gguf
from tests.engine.architectures.rows import VARIANTS
from tests.engine.families import (
    FAMILIES,
    N_CTX,
    TWIN_ARGUMENTS,
    ConvertedConfig,
    gemma4,
    olmo3,
    sliding,
)
from tests.engine.reference import Array, Twin
from tests.engine.test_models import nmse

pytestmark = pytest.mark.slow

IDS = np.random.default_rng(3).integers(3, 250, 170).tolist()
OTHERS = np.random.default_rng(9).integers(3, 250, 40).tolist()
N_STEPS = 70
ODD_BLOCKS = 7, 31, 5, 64, 23, 11, 29
OF_ONE_LAYER: dict[str, Callable[[], ConvertedConfig]] = {
    "gemma3, window": lambda: sliding("gemma3", 2, n_layers=1),
    "gemma3, whole": lambda: sliding("gemma3", 1, n_layers=1),
    "gemma2, window": lambda: sliding("gemma2", None, n_layers=1),
    "gemma2, whole": lambda: sliding("gemma2", 1, n_layers=1),
    "gemma4, window": lambda: gemma4([True]),
    "gemma4, whole": lambda: gemma4([False]),
    "phi3": lambda: VARIANTS["phi3 with longrope"].tiny(n_layers=1),
    "mistral3": lambda: tiny_gguf.model("mistral3", n_layers=1),
    "olmo3, window": lambda: olmo3([True]),
    "olmo3, whole": lambda: olmo3([False]),
    "cohere2, window": lambda: sliding("cohere2", 2, n_layers=1),
    "cohere2, whole": lambda: sliding("cohere2", 1, n_layers=1),
    "gpt-oss, window": lambda: sliding("gpt-oss", None, n_layers=1),
    "gpt-oss, whole": lambda: sliding("gpt-oss", 1, n_layers=1),
}
"""With one layer keys depend on token and position alone, so that moving them is exact."""


class Fed:
    """Model of a family, and the logits of each position of ``IDS`` in one block."""

    def __init__(self, name: str, directory: Path) -> None:
        self.model = Model.open(FAMILIES[name]().write(directory / "m.gguf"), threads=2)
        self._sessions = [self.model.session(n_ctx=N_CTX, kv="f32") for _ in range(2)]
        self.rows = self.session().feed(IDS, all_logits=True)
        self._twin_arguments = TWIN_ARGUMENTS.get(name, ())

    def session(self, number: int = 0) -> Session:
        """Return one of two sessions, emptied."""
        self._sessions[number].truncate(0)
        return self._sessions[number]

    def exact(self) -> Array:
        twins = architectures.load(self.model.config.architecture)
        logits: Array = twins.logits(Twin(self.model._file), IDS, *self._twin_arguments)
        return logits


@pytest.fixture(scope="module", params=FAMILIES)
def fed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fed]:
    result = Fed(request.param, tmp_path_factory.mktemp("model"))
    yield result
    result.model.close()


def test_a_block_beyond_windows_and_context_equals_the_twin(fed: Fed) -> None:
    attentions = fed.model.config.attentions.values()
    beyond = [attention.window for attention in attentions if attention.window] + [
        attention.rope.original_context
        for attention in attentions
        if attention.rope is not None and attention.rope.original_context
    ]
    assert beyond
    assert max(beyond) < len(IDS) // 2
    assert nmse(fed.rows, fed.exact()) < 1e-8


def test_odd_blocks_change_no_bit(fed: Fed) -> None:
    assert sum(ODD_BLOCKS) == len(IDS)
    session = fed.session()
    position = 0
    rows = []
    for n in ODD_BLOCKS:
        rows.append(session.feed(IDS[position : position + n], all_logits=True))
        position += n
    assert np.vstack(rows).tobytes() == fed.rows.tobytes()


@pytest.mark.smoke
def test_prompts_of_odd_length_end_with_the_same_bits(fed: Fed) -> None:
    session = fed.session()
    position = 0
    for n in ODD_BLOCKS:
        position += n
        assert (
            session.feed(IDS[position - n : position]).tobytes() == fed.rows[position - 1].tobytes()
        )


def test_token_by_token_computes_the_same(fed: Fed) -> None:
    session = fed.session()
    steps = np.stack([session.feed([token]) for token in IDS[:N_STEPS]])
    assert nmse(steps, fed.rows[:N_STEPS]) < 1e-8


@pytest.mark.parametrize("length", [20, 67])
def test_a_restored_state_goes_on_to_the_bit(fed: Fed, length: int, tmp_path: Path) -> None:
    saved = fed.session()
    restored = fed.session(1)
    saved.feed(IDS[:length])
    saving = StateWriter(saved, tmp_path / "kv.state")
    assert saving.flush(60), saving.problem
    saving.close()
    assert restore_state(restored, tmp_path / "kv.state", saved.tokens).tokens == length
    assert restored.feed(IDS[length:], all_logits=True).tobytes() == fed.rows[length:].tobytes()


@pytest.mark.parametrize("length", [20, 67])
def test_a_fork_and_the_way_back_change_no_bit(fed: Fed, length: int) -> None:
    session, fresh = fed.session(), fed.session(1)
    session.feed(IDS)
    forked = [*IDS[:length], *OTHERS]
    assert session.prefill(forked).fed == fresh.prefill(forked).fed - length
    assert (
        session.feed(OTHERS[:6], all_logits=True).tobytes()
        == fresh.feed(OTHERS[:6], all_logits=True).tobytes()
    )
    assert session.truncate(length) == length
    assert session.feed(IDS[length:], all_logits=True).tobytes() == fed.rows[length:].tobytes()


@pytest.mark.parametrize("name", OF_ONE_LAYER)
def test_shifted_tokens_are_as_if_computed_at_their_new_place(name: str, tmp_path: Path) -> None:
    model = Model.open(OF_ONE_LAYER[name]().write(tmp_path / "m.gguf"))
    moved, fresh = (model.session(n_ctx=N_CTX, kv="f32") for _ in range(2))
    for n_keep, n_drop in ((8, 16), (40, 77)):
        for session in (moved, fresh):
            session.truncate(0)
        moved.feed(IDS)
        moved.shift(n_keep, n_drop)
        fresh.feed(IDS[:n_keep] + IDS[n_keep + n_drop :])
        moved_logits, expected = (
            session.feed(OTHERS[:7], all_logits=True) for session in (moved, fresh)
        )
        assert np.abs(moved_logits - expected).max() < 1e-4 * np.abs(expected).max()
    model.close()
