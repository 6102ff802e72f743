"""The engine's logits against the NumPy twin of the whole forward pass, and against themselves."""

import json
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

from engine import Model, Sampling
from engine.errors import EngineError
from engine.measure.perplexity import score
from engine.models import ARCHITECTURES
from engine.pipeline import HEAD_TOKENS
from engine.saved_state import StateWriter, restore_state
from tests.engine import architectures, tiny_gguf
from tests.engine.reference import Array, Twin

pytestmark = pytest.mark.slow

IDS = [3, 17, 5, 90, 4, 4, 61, 33, 20, 8, 77, 12, 9, 150, 101, 2, 44]


def nmse(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(((actual - expected) ** 2).mean() / expected.var())


def twin_logits(model: Model, ids: list[int]) -> Array:
    """Return the logits of the twin of the model's architecture."""
    logits: Array = architectures.load(model.config.architecture).logits(Twin(model._file), ids)
    return logits


def assert_equals_twin(
    described: tiny_gguf.TinyGGUF,
    logits: Callable[[Twin, list[int]], Array],
    folder: Path,
    bound: float = 1e-9,
) -> Array:
    """Compare the logits of a block, and of the last tokens one by one, with the twin's, and return
    those."""
    model = Model.open(described.write(folder / "m.gguf"), threads=2)
    session = model.session(n_ctx=64, kv="f32")
    expected = logits(Twin(model._file), IDS)
    assert nmse(session.feed(IDS, all_logits=True), expected) < bound
    session.truncate(0)
    session.feed(IDS[:-4])
    assert nmse(np.stack([session.feed([token]) for token in IDS[-4:]]), expected[-4:]) < bound
    model.close()
    return expected


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_of_float_weights_equal_the_numpy_twin(architecture: str, tmp_path: Path) -> None:
    assert_equals_twin(
        tiny_gguf.model(architecture), architectures.load(architecture).logits, tmp_path
    )


@pytest.mark.parametrize(
    ("kv", "bound"),
    [("f16", 1e-6), ("f16/q8_0", 1e-4), ("q8_0", 1e-4), ("q8_0/q4_0", 0.02), ("q4_0", 0.05)],
)
def test_narrow_caches_stay_close_to_float32(kv: str, bound: float, tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", dim=128, n_heads=4)
    model = Model.open(path, threads=2)
    expected = twin_logits(model, IDS)
    assert nmse(model.session(n_ctx=64, kv=kv).feed(IDS, all_logits=True), expected) < bound
    model.close()


@pytest.mark.parametrize(("quant", "kv"), [("F32", "q4_0"), ("Q4_K", "f16"), ("Q8_0", "q8_0")])
def test_the_number_of_threads_changes_no_bit(quant: str, kv: str, tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", "llama", quant, dim=256, hidden_dim=768)
    results = []
    for threads in (1, 2, 3):
        model = Model.open(path, threads=threads)
        session = model.session(n_ctx=64, kv=kv)
        block = session.feed(IDS, all_logits=True)
        results.append(np.vstack([block, [session.feed([7]), session.feed([9])]]))
        model.close()
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


@pytest.mark.parametrize("architecture", architectures.KINDS)
def test_threads_and_block_sizes_change_no_bit(architecture: str, tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", architecture, "Q8_0")
    results = []
    for threads in (1, 3):
        model = Model.open(path, threads=threads)
        session = model.session(n_ctx=64)
        if threads == 1:
            expected = session.feed(IDS, all_logits=True)[-1]
            session.truncate(0)
        assert session.feed(IDS).tobytes() == expected.tobytes()
        single = np.stack([session.feed([token]) for token in IDS[:4]])
        if (n_left := session.truncate(len(IDS))) < len(IDS):  # layers cannot stop there
            session.feed(IDS[n_left:])
        results += [single, session.verify(IDS[:4])]
        model.close()
    assert all(logits.tobytes() == results[0].tobytes() for logits in results)


@pytest.mark.parametrize("architecture", architectures.KINDS)
def test_truncate_fork_and_restore_change_no_bit(architecture: str, tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", architecture), threads=1)
    session, fork = (model.session(n_ctx=64) for _ in range(2))
    rows = session.feed(IDS, all_logits=True)
    n_left = session.truncate(9)
    assert n_left in (0, 9)
    assert session.feed(IDS[n_left:], all_logits=True).tobytes() == rows[n_left:].tobytes()
    forked = [*IDS[:9], *IDS[:6]]
    assert session.prefill(forked).fed == len(forked) - n_left
    assert fork.prefill(forked).fed == len(forked)
    saving = StateWriter(fork, tmp_path / "kv.state")
    assert saving.flush(60), saving.problem
    saving.close()
    expected = fork.feed(IDS[:3], all_logits=True).tobytes()
    assert session.feed(IDS[:3], all_logits=True).tobytes() == expected
    session.truncate(0)
    assert restore_state(session, tmp_path / "kv.state", forked).tokens == len(forked)
    assert session.feed(IDS[:3], all_logits=True).tobytes() == expected
    # what can shift is in cache/test_context_shift.py
    if model.config.recurrents or model.config.learned_positions:
        with pytest.raises(EngineError, match="layers cannot forget"):
            session.shift(2, 4)
    model.close()


@pytest.mark.smoke
def test_attention_over_several_chunks_equals_the_numpy_twin(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(0, 200, 600).tolist()
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", context_length=1024), threads=2)
    session = model.session(n_ctx=700, kv="f32")
    session.feed(ids[:-1])
    logits = session.feed(ids[-1:])
    assert nmse(logits, twin_logits(model, ids)[-1]) < 1e-9
    model.close()


def test_how_a_prompt_is_cut_into_blocks_changes_no_bit(tmp_path: Path) -> None:
    model = Model.open(
        tiny_gguf.write(tmp_path / "m.gguf", "llama", "Q4_K", context_length=1024), threads=2
    )
    ids = np.random.default_rng(2).integers(0, 200, 90).tolist()
    expected = model.session(n_ctx=128).feed(ids)
    session = model.session(n_ctx=128)
    for start in (0, 31, 47, 80):
        end = {0: 31, 31: 47, 47: 80, 80: 90}[start]
        last = session.feed(ids[start:end])
    assert (expected == last).all()
    model.close()


def test_greedy_text_of_trained_models_equals_the_recorded(shared_data: Path) -> None:
    golden = json.loads((shared_data / "models" / "greedy_golden.json").read_text())
    for name in {run["model"] for run in golden["runs"]}:
        model = Model.open(shared_data / "models" / f"{name}.gguf", threads=1)
        session = model.session(n_ctx=256)
        for run in (run for run in golden["runs"] if run["model"] == name):
            ids = model.tokenizer.encode(run["prompt"], bos=True)
            session.prefill(ids)
            n = run["steps"] - len(ids)
            reply = session.generate(Sampling.greedy(), max_tokens=n)
            not_bos = takewhile(lambda piece: piece.token_id != 1, reply)  # run.c stops at BOS
            text = "".join(piece.text for piece in not_bos)
            written = run["prompt"] + (text if run["prompt"] else text.lstrip(" "))
            # run.c spells the unknown token out, we show nothing
            recorded = run["output"].replace("<unk>", "")
            assert written[: len(recorded)] == recorded[: len(written)]
            # run.c counts the prompt into its steps by one more or less
            assert abs(len(written) - len(recorded)) < 12
        model.close()


HEADS = (
    "llama",
    "gemma2",
    "granite",
    "command-r",
    "phi2",
    "phimoe",
    "stablelm",
    "gpt2",
    "qwen35",
    "muse-glimmer",
)
"""Each way to logits: tied, scaled, capped, with biases, other norms; after windows and recurrent
layers."""


@pytest.mark.parametrize("architecture", HEADS)
def test_scores_are_the_logits_of_each_position(architecture: str, tmp_path: Path) -> None:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", architecture), threads=2)
    session = model.session(n_ctx=128, kv="f32")
    ids = [(7 * n) % 90 + 3 for n in range(120)]
    expected = session.feed(ids, all_logits=True)
    for first in (0, 50):
        session.truncate(0)
        scored = [rows.copy() for rows in score(session, ids, first)]
        assert max(map(len, scored)) <= HEAD_TOKENS
        assert nmse(np.vstack(scored), expected[first:]) < 1e-9
        assert session.tokens == ids
    model.close()
