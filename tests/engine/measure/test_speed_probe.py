"""The speed probe runs the real kernels and stays within its memory."""

import pytest

from engine.errors import Cancelled
from engine.machine.memory import Memory
from engine.measure import speed_probe
from engine.plan.crew import Crew
from engine.plan.profile import read_bandwidth_gbps

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("threads", [1, 2])
def test_rates_are_measured_with_the_real_kernels(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed_probe, "MATRIX_BYTES", 4 << 20)
    monkeypatch.setattr(speed_probe, "read_bandwidth_gbps", lambda crew, n: 12.5)
    crew = Crew()
    try:
        rates = speed_probe.measure_rates(crew, ["Q8_0"], threads, threads)
    finally:
        crew.close()
    assert rates.read_gbps == 12.5
    assert 0.001 < rates.decode_gbps["Q8_0"] < 10_000
    assert 0.001 < rates.prefill_gops["Q8_0"] < 100_000


def test_only_a_cancel_during_a_measurement_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speed_probe, "MATRIX_BYTES", 4 << 20)
    crew = Crew()
    try:
        crew.cancel()
        rates = speed_probe.measure_rates(crew, ["Q8_0"], 1, 1)
        assert all(
            0.001 < gbps < 1000 for gbps in (rates.read_gbps or 0, rates.decode_gbps["Q8_0"])
        )
        crew.cancel()
        assert 0.001 < read_bandwidth_gbps(crew, 1, rounds=1) < 1000
        for measure in (
            lambda: speed_probe.decode_gbps(crew, "Q8_0", Memory(4 << 20), 1),
            lambda: read_bandwidth_gbps(crew, 1, is_unwanted=lambda: bool(crew.cancel())),
        ):
            crew.cancel()
            with pytest.raises(Cancelled):
                measure()
    finally:
        crew.close()


def test_many_threads_keep_the_matrix_within_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def best(crew: object, matrix: object, *_: object) -> float:
        seen.append(matrix)
        return 1.0

    monkeypatch.setattr(speed_probe, "_best_s", best)
    weights = Memory(1 << 20)
    speed_probe.prefill_gops(None, "F32", weights, 128)  # type: ignore[arg-type]
    speed_probe.decode_gbps(None, "F32", weights, 128)  # type: ignore[arg-type]
    assert len(seen) == 2
    assert all(
        matrix.address == weights.address and 0 < matrix.size_bytes <= weights.n_bytes
        for matrix in seen
    )
