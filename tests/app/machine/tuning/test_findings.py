"""Headline, bars and keys of made results: they never contradict each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.machine.sensors.tuning_conditions import Conditions
from app.machine.tuning.findings import (
    Findings,
    describe_briefly,
    detail_texts,
    findings_of,
    headline,
    measured_text,
    why_texts,
)
from app.machine.tuning.levels import leveled, speed_of
from app.machine.tuning.saved_tuning import measured_speeds
from app.machine.tuning.thread_bars import chart_lines, curve_lines, option_lines
from app.program.state import TunedChoice
from app.text import figures
from app.text.glyphs import BLOCKS
from engine.tuning.option_reasons import UNSURE
from engine.tuning.reasons import CAVEAT
from engine.tuning.report import TuningReport
from engine.tuning.statistics import Interval
from tests.app.machine.tuning.made_reports import (
    BUSY,
    NOW,
    QUIET,
    SLOW_PAGES,
    curve,
    interval,
    report,
)


def found(
    tuning_report: TuningReport, now: TunedChoice = NOW, conditions: Conditions = QUIET
) -> Findings:
    findings = findings_of(leveled(tuning_report), now, conditions)
    assert findings is not None
    return findings


def test_the_headline_names_speed_gain_choice_and_cost() -> None:
    text = "now 24.6 → best 29.3 tok/s (+19 %) · 2 threads, huge pages · costs 1.1 GB"
    assert headline(found(report()), BLOCKS) == text


def test_the_best_in_use_needs_no_change() -> None:
    best = replace(NOW, weights="huge")
    text = "now 29.3 tok/s: the best that was measured · 2 threads, huge pages"
    assert headline(found(report(), best), BLOCKS) == text
    assert found(report(), best).is_best_in_use


def test_a_busy_machine_gives_no_best() -> None:
    findings = found(report(), conditions=BUSY)
    assert "→ perhaps 29.3 tok/s" in headline(findings, BLOCKS)
    assert findings.why_not_kept == "because other programs used 1.0 cores"


def test_a_running_search_has_no_best_yet() -> None:
    running = report(state="measuring")
    assert "→ so far 29.3 tok/s" in headline(found(running), BLOCKS)
    best = replace(NOW, weights="huge")
    text = "now 29.3 tok/s: nothing better so far · 2 threads, huge pages"
    assert headline(found(running, best), BLOCKS) == text


def test_counts_too_close_to_call_are_named() -> None:
    writing = curve("decode", {1: interval(8.6, 4.0), 2: interval(10.4, 4.0)}, 1, is_settled=False)
    reading = curve("prefill", {1: interval(90.0, 40.0), 2: interval(95.0, 40.0)}, 2)
    tuning_report = report(writing, replace(reading, is_settled=False), SLOW_PAGES, state="unsure")
    findings = found(tuning_report)
    assert headline(findings, BLOCKS).startswith("Too close to call: 1 or 2 threads · now ")
    assert findings.best.decode == 2  # the count in use stays
    labels = [line.text.split()[-1] for line in curve_lines(writing, 2, 40, BLOCKS)]
    assert labels == ["close", "close"]


def test_a_longer_bar_is_a_faster_one() -> None:
    writing = curve("decode", {1: interval(8.6, 0.1), 2: interval(10.4, 5.0)}, 2)
    lines = curve_lines(writing, 2, 60, BLOCKS)
    slow, fast = (line.text.count("█") for line in lines)
    assert fast > slow
    tuning_report = leveled(report(comparison=report().comparisons[0]))
    mmap, huge = option_lines(tuning_report.comparisons[0], "decode", "mmap", 60, BLOCKS)
    # huge pages had the lower median, 14.9, but were 19 % faster within each pass
    assert huge.text.count("█") > mmap.text.count("█")
    assert huge.text.split()[3] == "29.3"


def test_fewer_threads_that_are_as_fast_are_marked_as_the_best() -> None:
    writing = curve("decode", {1: interval(24.0, 0.5), 2: interval(24.4, 0.5)}, 1)
    findings = found(report(writing, comparison=SLOW_PAGES))
    assert findings.best.decode == 1
    assert headline(findings, BLOCKS).startswith("As fast as now (")
    labels = [line.text.split()[-1] for line in curve_lines(writing, 2, 40, BLOCKS)]
    assert labels == ["best", "close"]


def test_a_gain_in_reading_alone_is_named_so() -> None:
    reading = curve("prefill", {2: interval(200.0), 4: interval(300.0)}, 4)
    text = headline(found(report(reading=reading, comparison=SLOW_PAGES)), BLOCKS)
    assert text.startswith("Reading the prompt: now 2")
    assert text.endswith("(+50 %) · 2 threads (4 reading)")


def test_uncertain_pinning_is_neither_used_nor_called_faster() -> None:
    gain = Interval(1.2, 0.9, 1.5, 6, True)
    writing = curve("decode", {1: interval(14.7), 2: interval(26.4)}, 2, pinned_gain=gain)
    tuning_report = report(writing, pinned=False)
    assert not found(tuning_report).best.pinned
    assert any("(-10 to 50): too close to call" in text for text in detail_texts(tuning_report))


def test_efficiency_cores_of_a_hybrid_have_a_heading() -> None:
    writing = curve("decode", {n: interval(10.0 + n) for n in (1, 2, 3)}, 3)
    kinds = ("core", "core", "efficiency core")
    points = tuple(
        replace(point, kind=kind) for point, kind in zip(writing.points, kinds, strict=True)
    )
    texts = [line.text for line in curve_lines(replace(writing, points=points), 2, 40, BLOCKS)]
    assert texts[3] == "   and efficiency cores"


def test_all_figures_of_a_report_have_one_level() -> None:
    tuning_report = leveled(report())
    assert leveled(tuning_report) == tuning_report
    assert speed_of(tuning_report, "decode", NOW) == pytest.approx(24.6)
    best = replace(NOW, weights="huge")
    assert speed_of(tuning_report, "decode", best) == pytest.approx(24.6 * 1.19)
    assert speed_of(tuning_report, "decode", replace(NOW, decode=9)) == 0.0
    saved = measured_speeds(tuning_report, best)
    assert saved is not None
    assert saved.decode_tps == pytest.approx(24.6 * 1.19)


@pytest.mark.parametrize("weights", ["mmap", "huge"])
@pytest.mark.parametrize("pinned", [False, True])
def test_the_bars_in_use_show_the_speed_of_the_headline(pinned: bool, weights: str) -> None:
    gain = Interval(1.37, 1.2, 1.5, 6, True)
    writing = curve("decode", {1: interval(14.7), 2: interval(26.4)}, 2, pinned_gain=gain)
    tuning_report = leveled(report(writing, pinned=True))
    assert leveled(tuning_report) == tuning_report
    now = replace(NOW, pinned=pinned, weights=weights)
    findings = found(tuning_report, now)
    now_tps = findings.now_tps["decode"]
    assert now_tps == pytest.approx(
        24.6 * (1 if pinned else 1 / 1.37) * (1.19 if weights == "huge" else 1)
    )
    text = figures.rate(now_tps)
    for title, lines in chart_lines(tuning_report, now, 70, BLOCKS):
        for line in lines:
            assert not line.text.startswith("▶") or "writing" not in title or text in line.text


def test_an_empty_report_has_no_findings() -> None:
    assert findings_of(None, NOW, QUIET) is None
    assert findings_of(replace(report(), curves=(), comparisons=()), NOW, QUIET) is None


def test_charts_of_the_command_have_a_title_for_each_phase() -> None:
    titles = [title for title, _ in chart_lines(report(), NOW, 70, BLOCKS)]
    assert titles == [
        "writing, tok/s",
        "reading the prompt, tok/s",
        "weights with 2 threads: writing, tok/s",
        "weights with 2 threads: reading the prompt, tok/s",
    ]


def test_details_hold_kernels_and_samples_and_the_reasons_do_not() -> None:
    kernel = "Q6_K: prefetch 1 kB, as usual: 25.7 GB/s"
    tuning_report = report(reasons=("2 threads write fastest.", kernel))
    assert why_texts(tuning_report) == ["2 threads write fastest."]
    details = detail_texts(tuning_report)
    assert kernel in details
    assert "Writing: samples of 16 tokens: 12 with 1 thread, 12 with 2 threads." in details


def test_that_results_are_uncertain_is_said_once() -> None:
    reasons = ("1 thread is enough." + CAVEAT, "2 threads read fastest." + CAVEAT)
    comparison = replace(SLOW_PAGES, reason="Weights stay mapped." + UNSURE)
    assert why_texts(report(reasons=reasons, comparison=comparison)) == [
        "1 thread is enough.",
        "2 threads read fastest.",
        "Weights stay mapped.",
        "Not certain yet: measure again when nothing else runs.",
    ]


def test_a_choice_is_described_in_a_few_words() -> None:
    assert describe_briefly(TunedChoice(1, 1)) == "1 thread"
    words = "2 threads (4 reading), each on its own core, huge pages, KV cache f32"
    assert describe_briefly(TunedChoice(2, 4, True, "huge", "f32")) == words


def test_the_time_of_a_search_is_a_date_or_today() -> None:
    finished_s = 1_790_000_000.0
    assert measured_text(finished_s, finished_s + 60).startswith("measured today ")
    assert "today" not in measured_text(finished_s, finished_s + 3 * 86400)
    assert measured_text(finished_s, finished_s + 400 * 86400).split()[3] == "2026"
    assert measured_text(0.0, finished_s) == ""
