"""Perplexity, its error, and what tells one session's predictions from another's, against NumPy's
figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine import Model
from engine.errors import EngineError
from engine.measure.perplexity import Estimate, chunks_of, measure
from tests.engine import tiny_gguf
from tests.engine.test_models import twin_logits

pytestmark = pytest.mark.slow

IDS = [(11 * n) % 97 + 3 for n in range(70)]
N_CHUNK = 24


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Model]]:
    place = tmp_path_factory.mktemp("models")
    paths = [
        tiny_gguf.model("llama", "F32", seed=seed).write(place / f"{seed}.gguf") for seed in (1, 2)
    ]
    found = [Model.open(path, threads=1) for path in paths]
    yield found
    for model in found:
        model.close()


def log_probabilities(model: Model, chunk: list[int]) -> Any:
    """(n_chunk - 1, vocab_size) float64, by the twin."""
    logits = np.asarray(twin_logits(model, chunk[:-1]), np.float64)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def estimate(values: Any) -> Estimate:
    return Estimate(float(np.mean(values)), float(np.std(values) / np.sqrt(len(values) - 1)))


def test_figures_are_those_of_numpy_after_each_chunk(models: list[Model]) -> None:
    chunks = chunks_of(IDS, N_CHUNK, models[0].tokenizer)
    assert len(chunks) == 2
    sessions = [model.session(N_CHUNK, "f32") for model in models]
    found = list(measure(sessions[0], chunks, sessions[1]))
    rows = [
        [log_probabilities(model, chunk)[N_CHUNK // 2 :] for chunk in chunks] for model in models
    ]
    targets = [chunk[N_CHUNK // 2 + 1 :] for chunk in chunks]
    for n, measured in enumerate(found, 1):
        ours, other = (np.vstack(of_model[:n]) for of_model in rows)
        at = np.arange(len(ours)), np.concatenate(targets[:n])
        assert measured.n_tokens == len(ours) == n * (N_CHUNK // 2 - 1)
        for told, losses in ((measured.perplexity, -ours[at]), (measured.reference, -other[at])):
            mean = estimate(losses)
            assert told is not None
            assert told.value == pytest.approx(np.exp(mean.value), rel=1e-4)
            assert told.error == pytest.approx(np.exp(mean.value) * mean.error, rel=1e-3)
        divergence = (np.exp(other) * (other - ours)).sum(1)
        same = ours.argmax(1) == other.argmax(1)
        assert measured.divergence is not None
        assert measured.divergence.value == pytest.approx(divergence.mean(), rel=1e-3)
        assert measured.divergence.error == pytest.approx(estimate(divergence).error, rel=1e-3)
        assert measured.same == estimate(same)
    alone = list(measure(sessions[0], chunks))
    assert [one.perplexity for one in alone] == [pytest.approx(one.perplexity) for one in found]
    assert alone[-1].divergence is alone[-1].same is alone[-1].reference is None


def test_a_session_does_not_differ_from_itself(models: list[Model]) -> None:
    one, same = (models[0].session(N_CHUNK, "f32") for _ in range(2))
    *_, measured = measure(one, chunks_of(IDS, N_CHUNK, models[0].tokenizer), same)
    assert measured.divergence == Estimate(0.0, 0.0)
    assert measured.same == Estimate(1.0, 0.0)
    assert measured.perplexity == measured.reference


def test_each_chunk_begins_as_a_text_does() -> None:
    begun: Any = SimpleNamespace(bos_id=1, add_bos=True)
    assert chunks_of([1, *range(10, 19)], 4, begun) == [[1, 10, 11, 12], [1, 14, 15, 16]]
    assert chunks_of([1, *range(10, 19)], 4, SimpleNamespace(bos_id=1, add_bos=False)) == [  # type: ignore[arg-type]
        [1, 10, 11, 12],
        [13, 14, 15, 16],
    ]
    assert chunks_of([1, 2], 4, begun) == []


def test_a_token_that_the_model_does_not_have_is_refused(models: list[Model]) -> None:
    with pytest.raises(EngineError, match="token ids must be"):
        list(measure(models[0].session(8), [[1 << 20] * 8]))


def test_weights_that_overflow_are_named(tmp_path: Path) -> None:
    tiny = tiny_gguf.model("llama", "F32")
    tensor = tiny.tensor("output_norm.weight")
    tensor.data = np.full(len(tensor.data) // 4, 3e38, np.float32).tobytes()
    model = Model.open(tiny.write(tmp_path / "bad.gguf"), threads=1)
    with pytest.raises(EngineError, match=r"bad\.gguf: the model computed NaN"):
        list(measure(model.session(N_CHUNK), chunks_of(IDS, N_CHUNK, model.tokenizer)))
    model.close()
