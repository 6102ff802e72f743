"""Choices from a tuning report and the lines that show them, with numbers written by hand."""

from dataclasses import replace

from app.machine.sensors.tuning_conditions import Conditions
from app.machine.tuning.saved_tuning import (
    best_choice,
    choice_to_remember,
    measured_of,
    why_not_kept,
)
from app.machine.tuning.thread_bars import option_lines
from app.program.state import TunedChoice, TuningConditions
from app.text.glyphs import ASCII, BLOCKS
from engine.machine.topology import Cores
from engine.tuning.report import Comparison, Curve, Option, Point, TuningReport
from engine.tuning.statistics import Interval

NOW = TunedChoice(2, 2, False, "mmap", "f16")


def interval(median: float) -> Interval:
    return Interval(median, 0.98 * median, 1.02 * median, 6, True)


def comparison(subject: str = "weights", best: str = "huge", **changes: object) -> Comparison:
    names = ("mmap", "huge") if subject == "weights" else ("q8_0", "f16")
    tps = {"decode": interval(5.0), "prefill": interval(20.0)}
    gain = {"decode": interval(1.12), "prefill": interval(0.99)}
    present = "mmap" if subject == "weights" else "f16"
    options = tuple(Option(name, 0, tps, {} if name == present else gain) for name in names)
    values = {
        "options": options,
        "best": best,
        "is_settled": True,
        "n_context": 840,
        "estimate": "a copy of 2.0 GB",
    }
    values.update(changes)
    return Comparison(part=subject, present=present, **values)  # type: ignore[arg-type]


def report(*comparisons: Comparison, best: int = 3) -> TuningReport:
    points = tuple(Point(n, "core", interval(float(n)), False) for n in (1, 2, 3))
    curves = tuple(
        Curve(phase, points, best, best, None, True, 4) for phase in ("decode", "prefill")
    )
    return TuningReport(
        curves,
        Cores((0, 1, 2), 3, None),
        "done",
        "",
        6,
        6,
        30.0,
        60.0,
        840,
        None,
        (),
        (),
        comparisons,
    )


def test_an_option_not_compared_stays_and_is_not_saved() -> None:
    assert best_choice(report(), NOW) == TunedChoice(3, 3, False, "mmap", "f16")
    assert choice_to_remember(report(), NOW, None) == TunedChoice(3, 3)
    previous = TunedChoice(1, 1, False, "huge", "q8_0")
    assert choice_to_remember(report(), NOW, previous) == TunedChoice(3, 3, False, "huge", "q8_0")


def test_the_best_compared_option_is_chosen_and_saved() -> None:
    tuning_report = report(comparison(), comparison("kv", "f16"))
    assert (
        best_choice(tuning_report, NOW)
        == choice_to_remember(tuning_report, NOW, None)
        == TunedChoice(3, 3, False, "huge", "f16")
    )


def test_a_skipped_option_counts_as_not_compared() -> None:
    left_out = comparison(options=(Option("mmap", 0),), best="mmap", left_out="no room")
    assert choice_to_remember(report(left_out), NOW, None).weights == ""


def test_conditions_are_saved_with_a_measured_choice() -> None:
    choice = TunedChoice(3, 3, False, "huge", "")
    assert measured_of(report(comparison()), choice, Conditions(), "k1") == TuningConditions(
        "k1", False
    )
    assert measured_of(report(), choice, Conditions(on_battery=True), "k1") == TuningConditions(
        "k1", True
    )
    assert measured_of(report(), TunedChoice(4, 3), Conditions(), "k1") is None


def test_bars_name_the_current_option_the_best_and_the_gain() -> None:
    lines = option_lines(comparison(), "decode", "mmap", 60, BLOCKS)
    mmap, huge = (line.text for line in lines)
    assert mmap.startswith("▶ mapped file █")
    assert huge.split()[:2] == ["huge", "pages"]
    assert huge.split()[3:] == ["5.0", "±0.1", "+12", "%", "best"]
    ascii_lines = option_lines(comparison("kv", "f16"), "decode", "f16", 60, ASCII)
    assert all(line.text.isascii() for line in ascii_lines)


def test_an_uncertain_comparison_has_no_best_option() -> None:
    unsettled = comparison(best="mmap", is_settled=False)
    lines = option_lines(unsettled, "decode", "mmap", 60, BLOCKS)
    assert [line.text.split()[-1] for line in lines] == ["close", "close"]
    leading = comparison(best="huge", is_settled=False)
    lines = option_lines(leading, "decode", "mmap", 60, BLOCKS)
    assert [line.text.split()[-1] for line in lines] == ["±0.1", "lead"]


def test_without_a_measurement_there_are_no_bars() -> None:
    empty = (Option("mmap", 0), Option("huge", 0))
    assert option_lines(comparison(options=empty), "decode", "mmap", 60, BLOCKS) == []


def test_the_current_count_stays_if_it_is_about_as_fast() -> None:
    wide = tuple(Point(n, "core", Interval(float(n), 1.0, 4.0, 6, True), False) for n in (2, 3))
    curves = (Curve("decode", wide, 3, 3, None, False, 4), report(best=3).curves[1])
    tuning_report = replace(report(), curves=curves)
    assert best_choice(tuning_report, NOW) == TunedChoice(2, 3, False, "mmap", "f16")
    assert best_choice(tuning_report, replace(NOW, decode=1)).decode == 3


def test_only_certain_results_of_a_quiet_machine_are_saved() -> None:
    certain = report(comparison())
    assert why_not_kept(certain, NOW, Conditions(others_cores=0.3)) == ""
    busy = Conditions(others_cores=0.4)
    assert why_not_kept(certain, NOW, busy) == "because other programs used 0.4 cores"
    swapping = Conditions(swapped_bytes=1 << 30)
    assert why_not_kept(certain, NOW, swapping) == "because the machine was swapping"
    stopped = replace(certain, state="stopped")
    assert why_not_kept(stopped, NOW, Conditions()) == "because the measurement was stopped"
    writing, reading = (replace(curve, is_settled=False) for curve in certain.curves)
    uncertain = replace(certain, curves=(writing, reading), state="unsure")
    assert why_not_kept(uncertain, NOW, Conditions()) == "because they are uncertain"


def test_of_an_uncertain_report_the_certain_part_is_saved() -> None:
    writing, reading = report(best=3).curves
    unsure = replace(report(), curves=(replace(writing, is_settled=False), reading), state="unsure")
    assert why_not_kept(unsure, NOW, Conditions()) == ""
    assert choice_to_remember(unsure, NOW, None) == TunedChoice(2, 3)
    dropped = tuple(replace(point, is_dropped=point.n_threads == 2) for point in writing.points)
    beaten = replace(writing, is_settled=False, points=dropped)
    unsure = replace(unsure, curves=(beaten, reading))
    assert choice_to_remember(unsure, NOW, None) == TunedChoice(3, 3)
