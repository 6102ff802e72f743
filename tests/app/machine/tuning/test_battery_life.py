"""The thread count with the least energy per token, from made samples."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.machine.tuning.battery_life import (
    EnergyRun,
    EnergySample,
    battery_bars,
    battery_headline,
    energy_counts,
)
from app.text.glyphs import BLOCKS


def energy_run(samples: dict[int, tuple[float, float]], spread: float = 0.01) -> EnergyRun:
    """Return a finished run; ``samples`` has joules per token and tokens per second."""
    taken = tuple(
        EnergySample(count, joules * factor, tps)
        for factor in (1 - spread, 1 + spread)
        for count, (joules, tps) in samples.items()
    )
    return EnergyRun(tuple(samples), taken, "whole machine", len(taken), is_over=True)


def test_the_headline_names_what_fewer_threads_cost_and_save() -> None:
    run = energy_run({1: (1.2, 13.0), 2: (0.65, 23.0), 4: (1.0, 25.0)})
    assert run.thriftiest == 2
    assert battery_headline(run) == "2 of 4 threads: 8 % slower, 35 % less energy per token"


def test_without_a_certain_saving_the_fastest_count_stays() -> None:
    close = energy_run({1: (1.2, 13.0), 2: (0.97, 23.0), 4: (1.0, 25.0)})
    noisy = energy_run({2: (0.8, 23.0), 4: (1.0, 25.0)}, spread=0.2)
    for run in (close, noisy):
        assert run.thriftiest == 4
        assert battery_headline(run).startswith("4 threads write fastest, and no other count")


def test_a_running_or_impossible_measurement_says_so() -> None:
    run = replace(energy_run({1: (1.2, 13.0)}), is_over=False, n_samples=4)
    assert battery_headline(run) == "measuring energy: sample 3 of 4"
    trouble = EnergyRun((1, 2), is_over=True, trouble="this machine does not tell its power")
    assert battery_headline(trouble).endswith("this machine does not tell its power")
    assert EnergyRun((1,), is_over=True).thriftiest is None


def test_a_result_of_a_busy_machine_proposes_nothing() -> None:
    run = energy_run({1: (1.2, 13.0), 2: (0.65, 23.0), 4: (1.0, 25.0)})
    busy = replace(run, others_cores=1.2)
    assert not busy.is_reliable
    assert battery_headline(busy).startswith("Unreliable, because other programs used 1.2 cores")
    assert not any("best" in bar.text for bar in battery_bars(busy, 4, 60, BLOCKS))


def test_bars_show_energy_and_speed() -> None:
    run = energy_run({2: (0.65, 23.0), 4: (1.0, 25.0)})
    two, four = (bar_line.text for bar_line in battery_bars(run, 4, 60, BLOCKS))
    assert two.split()[-4:] == ["±0.01", "23.0", "tok/s", "best"]
    assert four.startswith("▶  4 ")
    assert two.count("█") < four.count("█")


@pytest.mark.parametrize(
    ("most", "usual", "counts"),
    [(1, 1, (1,)), (2, 2, (1, 2)), (4, 4, (1, 2, 4)), (20, 8, (1, 2, 4, 8, 16, 20))],
)
def test_counts_go_from_one_to_all(most: int, usual: int, counts: tuple[int, ...]) -> None:
    assert energy_counts(most, usual) == counts
