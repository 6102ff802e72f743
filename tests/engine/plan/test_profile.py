"""Profiles of runs: times add up, all phases are named, and nothing is timed by default."""

import math
import time
from pathlib import Path

import numpy as np
import pytest

from engine import Model, Sampling
from engine.errors import Cancelled
from engine.kernels.records import PROBE
from engine.plan.compilation import compile_kernels
from engine.sampling import guessing
from tests.engine import tiny_gguf
from tests.engine.kernel_call import KERNEL

pytestmark = pytest.mark.slow


@pytest.fixture
def model(tmp_path: Path) -> Model:
    model = Model.open(tiny_gguf.write(tmp_path / "m.gguf", "llama", "Q8_0"), threads=2)
    yield model
    model.close()


def test_phases_add_up_to_the_time_of_the_runs(model: Model) -> None:
    session = model.session(n_ctx=64)
    session.feed([1, 2, 3, 4, 5])
    session.profiler.start()
    start = time.perf_counter()
    for token in range(10):
        session.feed([token])
    elapsed_s = time.perf_counter() - start
    phases = session.profiler.stop()["decode"]
    assert sum(phase.share for phase in phases) == pytest.approx(1.0)
    assert 0 < sum(phase.seconds for phase in phases) <= elapsed_s


def test_every_phase_of_a_plan_has_a_time_and_bytes(model: Model) -> None:
    session = model.session(n_ctx=64)
    session.profiler.start()
    session.feed([1])
    session.feed([2])
    phases = session.profiler.stop()["decode"]
    assert [phase.phase for phase in phases] == list(
        dict.fromkeys(row["phase"] for row in model.describe_plan())
    )
    read = sum(row["bytes"] for row in model.describe_plan() if row["op"].startswith("matvec"))
    assert sum(phase.weight_bytes for phase in phases) == 2 * read
    assert all(phase.seconds > 0 for phase in phases)


def test_a_profiled_step_computes_the_same(model: Model) -> None:
    plain = model.session(n_ctx=64)
    timed = model.session(n_ctx=64)
    timed.profiler.start()
    assert (plain.feed([5, 6, 7, 8]) == timed.feed([5, 6, 7, 8])).all()
    assert (plain.feed([9]) == timed.feed([9])).all()


def test_nothing_is_timed_after_the_end(model: Model) -> None:
    session = model.session(n_ctx=64)
    session.profiler.start()
    session.feed([1])
    session.profiler.stop()
    session.feed([2])
    assert session.profiler.stop() == {}


@pytest.mark.smoke
def test_the_bandwidth_probe_measures_something(model: Model) -> None:
    assert 0 < model.read_bandwidth_gbps(1) < math.inf


@pytest.mark.parametrize("n_streams", [1, 4])
def test_the_bandwidth_probe_reads_every_byte_once(n_streams: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, 5 * 4096, np.uint8)
    out = np.zeros((2, 4, 32), np.uint8)
    record = np.zeros(len(PROBE), np.int64)
    expected = {
        "address": data.ctypes.data,
        "n_bytes": data.size,
        "out": out.ctypes.data,
        "n_streams": n_streams,
    }
    for name, value in expected.items():
        record[getattr(PROBE, name) // 8] = value
    for thread in range(2):
        KERNEL(compile_kernels(["probe"])["probe"])(record.ctypes.data, thread, 2)
    assert (
        out[:, 0]
        == [np.bitwise_xor.reduce(half.reshape(-1, 32)) for half in np.split(data, [2 * 4096])]
    ).all()


def test_profiles_of_replies_include_sampling_and_the_caller(model: Model) -> None:
    session = model.session(n_ctx=64)
    session.feed([1, 2, 3])
    session.profiler.start()
    start = time.perf_counter()
    for _ in session.generate(Sampling.greedy(), max_tokens=10):
        waited_until = time.perf_counter() + 0.002
        while time.perf_counter() < waited_until:
            pass
    elapsed_s = time.perf_counter() - start
    phases = {phase.phase: phase for phase in session.profiler.read()["decode"]}
    n = session.length - 3
    assert phases["caller"].seconds >= 0.002 * n
    assert phases["sampling"].seconds > 0
    assert sum(phase.share for phase in phases.values()) == pytest.approx(1.0)
    assert sum(phase.seconds for phase in phases.values()) <= elapsed_s
    assert {phase.n_runs for phase in phases.values()} == {n}


def test_profiled_replies_are_guessed_like_others(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guessing, "SHARE", 1e9)
    monkeypatch.setattr(guessing, "MAX_BALANCE", 1e9)
    replies = []
    for is_profiled in (False, True):
        session = model.session(n_ctx=512)
        session.feed([5, 9, 20, 33, 47, 60, 71] * 3)
        if is_profiled:
            session.profiler.start()
        start = time.perf_counter()
        replies.append(
            [piece.token_id for piece in session.generate(Sampling.greedy(), 200, guess=True)]
        )
        elapsed_s = time.perf_counter() - start
        assert session.n_guessed > 20
    phases = {phase.phase: phase for phase in session.profiler.stop()["decode"]}
    assert replies[0] == replies[1]
    assert sum(phase.seconds for phase in phases.values()) <= elapsed_s
    session.close()


def test_reading_a_profile_does_not_end_it(model: Model) -> None:
    session = model.session(n_ctx=64)
    assert session.profiler.read() == {}
    session.profiler.start()
    session.feed([1])
    session.feed([2])
    assert session.profiler.read()["decode"][0].n_runs == 2
    session.feed([3])
    assert session.profiler.read()["decode"][0].n_runs == 3
    session.profiler.start()
    session.feed([4])
    assert session.profiler.stop()["decode"][0].n_runs == 1


def test_the_bandwidth_probe_can_be_cancelled(model: Model) -> None:
    answers = iter([False, False, True])
    with pytest.raises(Cancelled):
        model.read_bandwidth_gbps(1, is_unwanted=lambda: next(answers))


def test_read_weights_and_the_written_cache_are_resident(model: Model) -> None:
    session = model.session(n_ctx=64)
    session.feed([1, 2, 3])
    assert model.resident_weight_bytes() in (model.weights_bytes, None)
    resident = session.kv_resident_bytes()
    assert resident is None or 0 < resident <= session.kv_bytes
