"""Prefetching in decode: no choice changes the result, trials find the fastest, and the file of
choices is validated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Model, pipeline
from engine.errors import Cancelled
from engine.kernels import records
from engine.plan import lookahead
from engine.plan.crew import Crew
from engine.plan.lookahead import (
    CHOICES,
    DEFAULT,
    INTEL_DEFAULT,
    Lookahead,
    WeightAccess,
    ahead_of,
    measured_choices,
    save_choice,
)
from engine.tuning import lookahead_trials
from engine.tuning.lookahead_trials import try_lookahead
from engine.weights.weights import Tensor
from tests.engine import tiny_gguf

IDS = list(range(3, 40))


def set_cache(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    """Pretend that the processor's last-level cache has ``n_bytes``."""
    for module in (pipeline, lookahead_trials):
        monkeypatch.setattr(module, "last_cache_bytes", lambda: n_bytes)


@pytest.fixture(autouse=True)
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Path of a temporary file of choices; the choices in memory are cleared."""
    monkeypatch.setattr(lookahead, "_path", lambda: tmp_path / "lookahead.json")
    monkeypatch.setattr(lookahead_trials, "MIN_SAMPLE_BYTES", 0)
    set_cache(monkeypatch, 0)
    monkeypatch.setattr(lookahead, "is_intel", lambda: False)
    measured_choices.cache_clear()
    yield tmp_path / "lookahead.json"
    measured_choices.cache_clear()


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", quant="Q8_0"), threads=2)
    yield model
    model.close()


class Clock:
    """Duration of each run, as set by the test for its choice."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self._seconds = seconds
        self._alone: dict[int, float] = {}
        self.walked: list[int] = []

    def walk(self, ahead: int, threads: int) -> float:
        self.walked.append(ahead)
        seconds = self._alone if threads == 1 else self._seconds
        return seconds.get(ahead, 1.0)


@pytest.fixture
def clock(model: Model, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Clock that replaces the machine's measured times."""
    clock = Clock({})
    seconds = lookahead_trials._ProductRun.seconds

    def timed(walk: lookahead_trials._ProductRun, crew: Crew, threads: int, ahead: int) -> float:
        seconds(walk, crew, threads, ahead)
        return clock.walk(ahead, threads)

    monkeypatch.setattr(lookahead_trials._ProductRun, "seconds", timed)
    return clock


def used(model: Model) -> set[int]:
    session = model._sessions[0]
    operations = [
        operation for plan in session.pipeline.plans.values() for operation in plan.operations
    ]
    return {
        operation.arguments["ahead"]
        for operation in operations
        if operation.record is records.MATMUL
    }


@pytest.mark.slow
@pytest.mark.parametrize("quant", ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "IQ4_XS", "F16"])
def test_no_lookahead_changes_a_bit_of_the_result(quant: str, tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "m.gguf", quant=quant, dim=256, hidden_dim=512)
    logits = []
    model = Model.open(path, threads=2)
    assert model.config.vocab_size % 8  # some rows are not in a group of four
    for ahead in CHOICES:
        measured_choices()[quant] = Lookahead(ahead, 1.0, 1.0)
        session = model.session(n_ctx=64)
        assert ahead in used(model)
        session.feed(IDS[:20])
        logits.append([session.feed([token]).tobytes() for token in IDS[20:24]])
        session.close()
    model.close()
    assert all(rows == logits[0] for rows in logits)


def test_the_fastest_lookahead_is_used_at_once_and_saved(
    model: Model, clock: Clock, file: Path
) -> None:
    session = model.session(n_ctx=64)
    assert used(model) == {DEFAULT}
    clock._seconds = {-2048: 0.5, 32769: 0.9}
    results = try_lookahead(model, session)
    assert results.keys() == {"Q8_0", "Q8_0, one thread"}
    assert results["Q8_0"].ahead == -2048
    assert results["Q8_0"].gbps == pytest.approx(2 * results["Q8_0"].usual_gbps)
    assert used(model) == {-2048}
    assert clock.walked[: len(CHOICES)] == list(CHOICES)
    measured_choices.cache_clear()
    assert ahead_of("Q8_0") == -2048
    assert try_lookahead(model, session) == {}


def test_one_thread_has_its_own_lookahead(model: Model, clock: Clock) -> None:
    session = model.session(n_ctx=64)
    clock._seconds = {-2048: 0.5}
    clock._alone = {2048: 0.5}
    results = try_lookahead(model, session)
    assert (results["Q8_0"].ahead, results["Q8_0, one thread"].ahead) == (-2048, 2048)
    assert used(model) == {-2048}
    model.set_threads(1)
    session.feed(IDS[:1])
    assert used(model) == {2048}
    model.set_threads(2)
    session.feed(IDS[:1])
    assert used(model) == {-2048}


def test_the_default_lookahead_differs_on_intel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead, "is_intel", lambda: True)
    assert (ahead_of("Q8_0"), ahead_of("Q8_0", WeightAccess(is_cached=True))) == (
        INTEL_DEFAULT,
        INTEL_DEFAULT,
    )
    save_choice("Q8_0", Lookahead(0, 2.0, 1.0))
    assert ahead_of("Q8_0") == 0


def test_cached_weights_have_their_own_lookahead(
    model: Model, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_cache(monkeypatch, 1 << 30)
    clock._seconds = {0: 0.5}
    results = try_lookahead(model, model.session(n_ctx=64))
    assert {key: choice.ahead for key, choice in results.items()} == {
        "Q8_0, cached": 0,
        "Q8_0, cached, one thread": DEFAULT,
    }
    assert ahead_of("Q8_0") == DEFAULT
    assert ahead_of("Q8_0", WeightAccess(is_cached=True)) == 0


@pytest.mark.parametrize(("cache_bytes", "sampled"), [(0, 8), (5000, 10), (100_000, 16)])
def test_a_sample_is_larger_than_the_cache(
    cache_bytes: int, sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookahead_trials, "SAMPLE_BYTES", 4000)
    set_cache(monkeypatch, cache_bytes)
    matrices = [
        Tensor(f"{quant}.{i}", quant, 10, 100, 100, 500, 0)
        for i in range(16)
        for quant in ("Q4_K", "Q8_0")
    ]
    samples = lookahead_trials._samples(matrices, 0)
    assert {quant: len(sample) for quant, sample in samples.items()} == {
        "Q4_K": sampled,
        "Q8_0": sampled,
    }


def test_much_slower_choices_are_dropped_early(model: Model, clock: Clock) -> None:
    clock._seconds = clock._alone = dict.fromkeys(CHOICES[:-1], 2.0)
    assert try_lookahead(model, model.session(n_ctx=64))["Q8_0"].ahead == CHOICES[-1]
    rounds = lookahead_trials.ROUNDS + 1
    assert [clock.walked.count(choice) for choice in (CHOICES[-1], DEFAULT, 0)] == [
        2 * rounds,
        2 * rounds,
        2 * 3,
    ]


def test_a_hardly_faster_choice_does_not_replace_the_default(model: Model, clock: Clock) -> None:
    clock._seconds = {-4096: 0.99}
    assert try_lookahead(model, model.session(n_ctx=64))["Q8_0"].ahead == DEFAULT


def test_small_samples_are_not_measured(
    model: Model, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookahead_trials, "MIN_SAMPLE_BYTES", 32 << 20)
    assert try_lookahead(model, model.session(n_ctx=64)) == {}
    assert measured_choices() == {}
    assert not clock.walked


def test_a_cancelled_trial_can_be_repeated(model: Model, clock: Clock) -> None:
    session = model.session(n_ctx=64)
    with pytest.raises(Cancelled):
        try_lookahead(model, session, is_unwanted=lambda: len(clock.walked) == 3)
    assert len(clock.walked) == 3
    assert measured_choices() == {}
    assert "Q8_0" in try_lookahead(model, session)


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        {"ahead": -2048},
        {"ahead": -2049, "gbps": 1.0, "usual_gbps": 1.0},
        {"ahead": True, "gbps": 1.0, "usual_gbps": 1.0},
        {"ahead": 2048.0, "gbps": 1.0, "usual_gbps": 1.0},
        {"ahead": 2048, "gbps": -1.0, "usual_gbps": 1.0},
        {"ahead": 2048, "gbps": float("nan"), "usual_gbps": 1.0},
        {"ahead": 2048, "gbps": "fast", "usual_gbps": 1.0},
        {"ahead": 2048, "gbps": 10**400, "usual_gbps": 1.0},
        {"ahead": 2048, "gbps": 1.0, "usual_gbps": 1.0, "more": 1},
    ],
)
def test_invalid_values_in_the_file_are_ignored(values: object, file: Path) -> None:
    sound = {"ahead": -4096, "gbps": 2.0, "usual_gbps": 1.0}
    file.write_text(
        json.dumps(
            {lookahead._processor(): {"Q4_K": sound, "Q8_0": values}, "other": {"Q6_K": sound}}
        )
    )
    assert (ahead_of("Q4_K"), ahead_of("Q8_0"), ahead_of("Q6_K")) == (-4096, DEFAULT, DEFAULT)


def test_results_of_another_processor_stay_in_the_file(file: Path) -> None:
    other_results = {"Q6_K": {"ahead": 0, "gbps": 2.0, "usual_gbps": 1.0}}
    file.write_text(json.dumps({"other": other_results}))
    save_choice("Q8_0", Lookahead(-2048, 2.0, 1.0))
    assert json.loads(file.read_text())["other"] == other_results


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b"[]", b'{"x": 1}', b" " * 100_000, b"\xff"]
)
def test_a_damaged_file_counts_as_no_file(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    assert measured_choices() == {}
    save_choice("Q8_0", Lookahead(-2048, 2.0, 1.0))
    measured_choices.cache_clear()
    assert ahead_of("Q8_0") == -2048


def test_a_lookahead_that_cannot_be_saved_is_still_used(file: Path) -> None:
    file.mkdir()
    save_choice("Q8_0", Lookahead(-2048, 2.0, 1.0))
    assert ahead_of("Q8_0") == -2048
    assert [path.name for path in file.parent.iterdir()] == [file.name]
