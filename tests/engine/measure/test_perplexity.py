"""Perplexity, its error, and the divergence of two sessions, against NumPy."""

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
    directory = tmp_path_factory.mktemp("models")
    paths = [
        tiny_gguf.model("llama", "F32", seed=seed).write(directory / f"{seed}.gguf")
        for seed in (1, 2)
    ]
    opened = [Model.open(path, threads=1) for path in paths]
    yield opened
    for model in opened:
        model.close()


def log_probabilities(model: Model, chunk: list[int]) -> Any:
    """Return log-probabilities of the twin, (n_chunk - 1, vocab_size) float64."""
    logits = np.asarray(twin_logits(model, chunk[:-1]), np.float64)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def estimate(values: Any) -> Estimate:
    return Estimate(float(np.mean(values)), float(np.std(values) / np.sqrt(len(values) - 1)))


def test_figures_equal_those_of_numpy_after_each_chunk(models: list[Model]) -> None:
    chunks = chunks_of(IDS, N_CHUNK, models[0].tokenizer)
    assert len(chunks) == 2
    sessions = [model.session(N_CHUNK, "f32") for model in models]
    figures = list(measure(sessions[0], chunks, sessions[1]))
    rows = [
        [log_probabilities(model, chunk)[N_CHUNK // 2 :] for chunk in chunks] for model in models
    ]
    targets = [chunk[N_CHUNK // 2 + 1 :] for chunk in chunks]
    for n, measured in enumerate(figures, 1):
        first, second = (np.vstack(of_model[:n]) for of_model in rows)
        targets_so_far = np.arange(len(first)), np.concatenate(targets[:n])
        assert measured.n_tokens == len(first) == n * (N_CHUNK // 2 - 1)
        for perplexity, losses in (
            (measured.perplexity, -first[targets_so_far]),
            (measured.reference, -second[targets_so_far]),
        ):
            mean = estimate(losses)
            assert perplexity is not None
            assert perplexity.value == pytest.approx(np.exp(mean.value), rel=1e-4)
            assert perplexity.error == pytest.approx(np.exp(mean.value) * mean.error, rel=1e-3)
        divergence = (np.exp(second) * (second - first)).sum(1)
        agrees = first.argmax(1) == second.argmax(1)
        assert measured.divergence is not None
        assert measured.divergence.value == pytest.approx(divergence.mean(), rel=1e-3)
        assert measured.divergence.error == pytest.approx(estimate(divergence).error, rel=1e-3)
        assert measured.same == estimate(agrees)
    alone = list(measure(sessions[0], chunks))
    assert [figure.perplexity for figure in alone] == [
        pytest.approx(figure.perplexity) for figure in figures
    ]
    assert alone[-1].divergence is alone[-1].same is alone[-1].reference is None


@pytest.mark.smoke
def test_a_session_does_not_differ_from_itself(models: list[Model]) -> None:
    first, second = (models[0].session(N_CHUNK, "f32") for _ in range(2))
    *_, measured = measure(first, chunks_of(IDS, N_CHUNK, models[0].tokenizer), second)
    assert measured.divergence == Estimate(0.0, 0.0)
    assert measured.same == Estimate(1.0, 0.0)
    assert measured.perplexity == measured.reference


def test_each_chunk_starts_with_begin_of_text() -> None:
    tokenizer: Any = SimpleNamespace(bos_id=1, add_bos=True)
    assert chunks_of([1, *range(10, 19)], 4, tokenizer) == [[1, 10, 11, 12], [1, 14, 15, 16]]
    without_bos: Any = SimpleNamespace(bos_id=1, add_bos=False)
    assert chunks_of([1, *range(10, 19)], 4, without_bos) == [
        [1, 10, 11, 12],
        [13, 14, 15, 16],
    ]
    assert chunks_of([1, 2], 4, tokenizer) == []


def test_an_unknown_token_is_refused(models: list[Model]) -> None:
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
