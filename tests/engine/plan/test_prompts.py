"""Results of a prompt: keys and values of all tokens, and logits of the last token only."""

from collections.abc import Iterator

import numpy as np
import pytest

from engine import EngineError, Model, Sampling
from engine.errors import Cancelled
from tests.engine import tiny_gguf

IDS = np.random.default_rng(4).integers(3, 250, 200).tolist()
STORED = {"attn_k", "attn_v"}
OTHERS = {"attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_gguf.write(
        tmp_path_factory.mktemp("model") / "tiny.gguf", "llama", "Q8_0", n_layers=2
    )
    opened = Model.open(path, threads=2)
    yield opened
    opened.close()


def products(model: Model, plan: str) -> list[set[str]]:
    """Return the matrices that a plan multiplies with, by layer, and the output."""
    rows = model.session(n_ctx=64).pipeline.plans[plan].describe()
    names = [
        row["weights"].split(".")
        for row in rows
        if row["op"].startswith(("matvec", "small_batch", "matmul"))
    ]
    layers: list[set[str]] = [
        {name[2] for name in names if name[:2] == ["blk", str(n)]} for n in range(2)
    ]
    return [*layers, {name[0] for name in names if name[0] != "blk"}]


@pytest.mark.parametrize("plan", ["small batch", "block"])
def test_blocks_end_at_the_last_stored_kv_then_one_token_runs(model: Model, plan: str) -> None:
    assert products(model, plan) == [STORED | OTHERS, STORED, set()]
    assert products(model, plan + " last") == [set(), OTHERS, {"output"}]


@pytest.mark.parametrize("n", [2, 4, 5, 70, 200])
def test_the_last_token_has_the_logits_of_a_full_computation(model: Model, n: int) -> None:
    all_layers, prompt = (model.session(n_ctx=256) for _ in range(2))
    prompt.pipeline.block_size_at = lambda pos: 64  # type: ignore[method-assign]
    expected = all_layers.feed(IDS[:n], all_logits=True)[-1]
    assert prompt.feed(IDS[:n]).tobytes() == expected.tobytes()
    # The keys and values are equal, too.
    assert prompt.feed([7]).tobytes() == all_layers.feed([7]).tobytes()


def test_only_the_end_of_a_prompt_computes_logits(model: Model) -> None:
    session = model.session(n_ctx=256)
    session.pipeline.block_size_at = lambda pos: 64  # type: ignore[method-assign]
    session.profiler.start()
    session.prefill(IDS)
    assert {name: phases[0].n_runs for name, phases in session.profiler.stop().items()} == {
        "block": 4,
        "block last": 1,
    }


def test_a_cancelled_prompt_keeps_its_blocks_but_cannot_continue(model: Model) -> None:
    session, fresh = (model.session(n_ctx=256) for _ in range(2))
    session.pipeline.block_size_at = lambda pos: 64  # type: ignore[method-assign]
    session.feed(IDS[:3])
    with pytest.raises(Cancelled):
        session.prefill(IDS, on_progress=lambda done, total: session.cancel())
    assert session.length == 67
    with pytest.raises(EngineError, match="nothing to continue"):
        next(session.generate(Sampling.greedy()))
    assert session.prefill(IDS).reused == 67
    fresh.feed(IDS[:3])
    fresh.feed(IDS[3:])
    assert session.feed([7]).tobytes() == fresh.feed([7]).tobytes()
