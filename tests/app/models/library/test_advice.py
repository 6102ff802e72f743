"""Advice on model sizes: the data agree with their derivation, and memory and speed decide."""

import pytest

from app.models.library import advice
from app.models.library.known_models import best_known
from app.program.refusals import Refusal
from engine.measure.fit import MachineMemory, MachineRates

GIB = 1 << 30


@pytest.mark.parametrize("row", advice.memory_rows(), ids=lambda row: f"{row.gib} GiB")
def test_the_memory_table_agrees_with_its_derivation(row: advice.MemoryRow) -> None:
    memory = MachineMemory(row.gib * GIB, int((row.gib - row.system) * GIB))
    best = []
    for shape in reversed(advice.shapes()):
        trials = {
            quantization: advice._try(shape.parameters, quantization, memory, MachineRates())
            for quantization in advice._four_bits_or_more()
        }
        fitting = [quantization for quantization, trial in trials.items() if trial.verdict == "yes"]
        best += [f"{shape.size} {fitting[0]}"] if fitting else []
    assert row.best == tuple(best[:3])


def test_the_table_has_the_sizes_people_ask_for() -> None:
    assert [row.gib for row in advice.memory_rows()] == [4, 8, 16, 32, 64]


@pytest.mark.parametrize(
    ("size", "quantization", "gigabytes"),
    [
        ("8.03B", "Q4_K_M", 4.92),
        ("70.55B", "Q4_K_M", 43.1),
        ("8.03b", "Q8_0", 8.54),
        ("8.03B", "Q6_K", 6.6),
    ],
)
def test_estimated_files_are_as_large_as_real_ones(
    size: str, quantization: str, gigabytes: float
) -> None:
    needs = advice.needs_of_size(advice.parameters_of(size), quantization)
    assert needs.weights_bytes / 1e9 == pytest.approx(gigabytes, rel=0.02)
    assert needs.is_estimate


def test_an_estimated_8b_model_reads_as_much_as_a_real_one() -> None:
    needs = advice.needs_of_size(8.03e9, "Q4_K_M")
    assert needs.bytes_per_token / 1e9 == pytest.approx(4.6, rel=0.02)
    assert needs.memory.position_bytes == 2 * 32 * 8 * 128 * 2
    assert set(needs.read_bytes) == {"Q4_K"}


@pytest.mark.parametrize(
    "size", ["", "8", "B", "8x", "-3B", "1e9B", "0.00001M", "9999999999B", "8B\n8B"]
)
def test_an_invalid_size_is_refused_in_one_line(size: str) -> None:
    with pytest.raises(Refusal, match="--size"):
        advice.parameters_of(size)


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Refusal, match="Q4_K_M"):
        advice.needs_of_size(8e9, "Q9_X")


def test_a_slow_machine_gets_models_as_fast_as_a_reader() -> None:
    memory = MachineMemory(8 * GIB, 6 * GIB)
    suggestions = advice.suggestions(memory, MachineRates(12.0, {"Q4_K": 10.5}, {"Q4_K": 40.0}))
    sizes = [suggestion.size for suggestion in suggestions]
    assert sizes == ["8B", "3B", "1B", "0.5B"]
    by_size = {suggestion.size: suggestion for suggestion in suggestions}
    assert 4 <= (by_size["3B"].fit.decode_tps or 0) < 6
    best = best_known(memory, MachineRates(12.0, {"Q4_K": 10.5}, {"Q4_K": 40.0}))
    assert best is not None
    assert 2e9 <= best.parameters <= 5e9
    assert {suggestion.size: suggestion.quantization for suggestion in suggestions}[
        "8B"
    ] == "Q4_K_M"
    assert all(suggestion.fit.verdict == "yes" for suggestion in suggestions)


def test_more_bits_are_advised_only_if_fast_enough() -> None:
    memory = MachineMemory(64 * GIB, 60 * GIB)
    fast = advice.suggestions(memory, MachineRates(220.0, {"Q4_K": 200.0}))
    assert (fast[0].size, fast[0].quantization) == ("70B", "Q4_K_M")
    assert (fast[0].fit.decode_tps or 0) >= advice.READING_TPS
    assert {suggestion.size: suggestion.quantization for suggestion in fast}["8B"] == "Q4_K_M"
    better = advice.better_quality(8e9, memory, MachineRates(220.0, {"Q4_K": 200.0}))
    assert better is not None
    assert better.quantization == "Q8_0"


def test_without_a_measurement_there_is_advice_without_speeds() -> None:
    suggestions = advice.suggestions(MachineMemory(8 * GIB, 6 * GIB), MachineRates())
    assert [suggestion.fit.decode_tps for suggestion in suggestions] == [None] * len(suggestions)
    assert suggestions[0].quantization == "Q4_K_M"


def test_a_machine_too_small_for_all_models_gets_no_advice() -> None:
    suggestions = advice.suggestions(MachineMemory(GIB, GIB // 4), MachineRates(5.0))
    assert suggestions == []
    assert best_known(MachineMemory(GIB, GIB // 4), MachineRates(5.0)) is None


@pytest.mark.parametrize(
    ("gib", "row"), [(2.0, None), (3.7, 4), (7.6, 8), (15.3, 16), (24.0, 16), (62.6, 64)]
)
def test_the_memory_row_is_that_of_the_installed_memory(gib: float, row: int | None) -> None:
    memory_row = advice.row_for(int(gib * GIB))
    assert (memory_row.gib if memory_row else None) == row
