"""Tests of spans of a cache that a prompt has elsewhere."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model, Session
from engine.cache.cached_tokens import common_prefix
from engine.cache.moved_spans import N_AGAIN, MovedSpan, find_spans, joined_spans
from engine.errors import Cancelled
from tests.engine import tiny_gguf

IDS = np.random.default_rng(0).integers(3, 250, 120).tolist()
START = IDS[:20]
SPAN = IDS[20:70]
OTHER = IDS[70:110]


def one_layer(folder: Path, architecture: str = "llama", **arguments: Any) -> Model:
    """Return a model of one layer: its keys and values depend only on token and position, so moving
    them is exact."""
    tiny = tiny_gguf.model(architecture, n_layers=1, n_heads=2, n_kv_heads=2, **arguments)
    return Model.open(tiny.write(folder / "m.gguf"), threads=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    opened = one_layer(tmp_path_factory.mktemp("moved"))
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("cached", "prompt", "runs"),
    [
        # a key before the span, and one key less
        ([*START, *SPAN, 1], [*START, 2, *SPAN, 1], [(20, 21, 50)]),
        ([*START, 2, *SPAN, 1], [*START, *SPAN, 1], [(21, 20, 50)]),
        # a key that was replaced: the span stays where it is
        ([*START, 2, *SPAN, 1], [*START, 3, *SPAN, 1], [(21, 21, 50)]),
        # two spans, and two that change places
        ([1, *SPAN, 5, *OTHER, 9], [2, 2, *SPAN, 6, 6, *OTHER, 9], [(1, 2, 50), (52, 54, 40)]),
        ([1, *SPAN, *OTHER, 9], [2, *OTHER, *SPAN, 9], [(51, 1, 40), (1, 41, 50)]),
        # the last token is always computed
        ([1, *SPAN], [2, *SPAN], [(1, 1, 49)]),
        # too short, or nothing new
        ([1, *SPAN[:20]], [2, *SPAN[:20], 3], []),
        ([*START, *SPAN], [*START, *SPAN, 3], []),
        ([], [1, 2], []),
        ([1], [1], []),
    ],
)
def test_spans_are_found(
    cached: list[int], prompt: list[int], runs: list[tuple[int, int, int]]
) -> None:
    n_shared = min(common_prefix(cached, prompt), len(prompt) - 1)
    spans = [MovedSpan(first + N_AGAIN, to + N_AGAIN, n - N_AGAIN) for first, to, n in runs]
    assert find_spans(cached, prompt, n_shared, 24) == spans


def test_spans_are_joined() -> None:
    spans = [MovedSpan(5, 20, 10), MovedSpan(40, 50, 3)]
    assert joined_spans(spans, 7) == [MovedSpan(20, 7, 10), MovedSpan(50, 17, 3)]


CHANGES = {
    "inserted": ([*START, *SPAN, 1], [*START, 2, 3, 4, *SPAN, 1, 2], 3 + N_AGAIN + 1),
    "removed": ([*START, *SPAN, 1], [*START[2:], *SPAN, 1, 2], N_AGAIN + 1),
    "replaced": ([*START, 2, *SPAN, 1], [*START, 3, *SPAN, 1], 1 + N_AGAIN + 1),
    "two": (
        [1, *SPAN, 5, *OTHER, 9],
        [2, 2, *SPAN, 6, 6, 7, *OTHER, 9],
        2 + N_AGAIN + 3 + N_AGAIN + 1,
    ),
    "turned": ([1, *SPAN, *OTHER, 9], [2, *OTHER, *SPAN, 8, 8, 8], 1 + 2 * N_AGAIN + 3),
}
MAX_ERRORS = {"f32": 1e-4, "f16": 5e-3, "q8_0": 0.05}


def check_logits(moved: Session, fresh: Session) -> None:
    """Check that two sessions have the same next token."""
    expected = fresh.next_logits
    max_error = MAX_ERRORS[fresh.kv_type] * np.abs(expected).max()
    assert np.abs(moved.next_logits - expected).max() < max_error


@pytest.mark.parametrize("kv", MAX_ERRORS)
@pytest.mark.parametrize("name", CHANGES)
def test_moved_tokens_of_one_layer_equal_computed_ones(model: Model, name: str, kv: str) -> None:
    cached, prompt, n_fed = CHANGES[name]
    with closing(model.session(n_ctx=128, kv=kv)) as moved:
        moved.min_moved_tokens = 24
        moved.prefill(cached)
        assert moved.reusable(prompt) == len(prompt) - n_fed
        assert moved.prefill(prompt).fed == n_fed
        assert moved.tokens == prompt
        with closing(model.session(n_ctx=128, kv=kv)) as fresh:
            fresh.prefill(prompt)
            check_logits(moved, fresh)


def test_spans_stay_in_the_cache_after_a_stop(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached, prompt, n_fed = CHANGES["two"]
    moved = model.session(n_ctx=128, kv="f32")
    moved.min_moved_tokens = 24
    moved.prefill(cached)

    def stop(*_: Any, **__: Any) -> Any:
        raise Cancelled

    with monkeypatch.context() as patch:
        patch.setattr(moved.forward, "compute_block", stop)
        with pytest.raises(Cancelled):
            moved.prefill(prompt)
    assert moved.tokens == [*SPAN[N_AGAIN:], *OTHER[N_AGAIN:]]
    assert moved.prefill(prompt).fed == n_fed + 2 * N_AGAIN
    fresh = model.session(n_ctx=128, kv="f32")
    fresh.prefill(prompt)
    check_logits(moved, fresh)
    moved.close()
    fresh.close()


def test_other_prompts_get_no_moved_tokens(model: Model) -> None:
    cached, prompt, _ = CHANGES["inserted"]
    moved = model.session(n_ctx=128, kv="f32")
    peer = model.session(peer=moved)
    moved.min_moved_tokens = 24
    moved.prefill(cached)
    moved.prefill(prompt)
    n_exact = 20 + 3 + N_AGAIN
    assert moved.cached.n_exact == n_exact
    # neither what is saved, nor a session that copies, nor a prompt without moves
    assert moved.cached.permanent_ids() == prompt[:n_exact]
    peer.prefill(prompt)
    assert moved.reusable(prompt) == len(prompt) - 1
    moved.min_moved_tokens = 0
    assert moved.reusable(prompt) == n_exact
    assert moved.prefill(prompt).reused == n_exact
    assert np.array_equal(moved.next_logits, peer.next_logits)
    assert moved.cached.n_exact == len(prompt)
    peer.close()
    moved.close()


@pytest.mark.parametrize("architecture", ["gemma3", "gpt2", "lfm2moe"])
def test_layers_that_cannot_move_spans_compute_them(tmp_path: Path, architecture: str) -> None:
    cached, prompt, _ = CHANGES["inserted"]
    tiny = tiny_gguf.model(architecture)
    with closing(Model.open(tiny.write(tmp_path / "m.gguf"), threads=1)) as opened:
        session = opened.session(n_ctx=128)
        session.min_moved_tokens = 24
        session.prefill(cached)
        assert session.prefill(prompt).reused <= 20
