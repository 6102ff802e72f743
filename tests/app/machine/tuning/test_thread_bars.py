"""Bars of thread counts: their content, glyphs and width."""

from dataclasses import replace

from app.machine.tuning.thread_bars import CurveRole, curve_lines, pinning_line, progress_text
from app.text.glyphs import ASCII, BLOCKS
from engine.machine.topology import Cores
from engine.tuning.report import Curve, Point, TuningReport
from engine.tuning.statistics import Interval

LAPTOP = Cores((0, 1, 2, 3), 2, None)


def rate(median: float, spread: float) -> Interval:
    return Interval(median, median - spread, median + spread, 6, True)


CURVE = Curve(
    "decode",
    (
        Point(1, "core", rate(3.0, 0.1), True),
        Point(2, "core", rate(5.0, 0.5), False),
        Point(3, "sibling", rate(3.4, 0.6), False),
        Point(4, "sibling", None, False),
    ),
    best=2,
    fastest=2,
    gain=None,
    is_settled=True,
    n_tokens=4,
)


def report(state: str = "measuring", **changes: object) -> TuningReport:
    values = {"measuring": "decode, 2 threads", "round_number": 4, "elapsed_s": 22.0, **changes}
    return TuningReport(
        curves=(CURVE,),
        cores=LAPTOP,
        state=state,
        n_rounds=6,
        budget_s=60.0,
        n_context=840,
        **values,
    )


def test_a_bar_ends_at_the_speed_and_a_whisker_is_the_spread() -> None:
    lines = curve_lines(CURVE, 2, 33, BLOCKS)  # eleven cells for 5.5 tokens a second
    assert [line.text for line in lines] == [
        "   physical cores",
        "   1 ██████        3.0 ±0.1  slow",
        "▶  2 ██████████┤   5.0 ±0.5  best",
        "   and siblings",
        "   3 ███████┤      3.4 ±0.6",
        "   4                 -",
    ]
    assert [line.role for line in lines] == [
        CurveRole.KIND,
        CurveRole.DROPPED,
        CurveRole.BEST,
        CurveRole.KIND,
        CurveRole.PLAIN,
        CurveRole.PLAIN,
    ]


def test_ascii_bars_show_the_same_values() -> None:
    texts = [line.text for line in curve_lines(CURVE, 2, 33, ASCII)]
    assert texts[2] == ">  2 ##########|   5.0 +-0.5 best"
    assert all(text.isascii() for text in texts)


def test_one_type_of_core_needs_no_headings() -> None:
    curve = Curve("decode", CURVE.points[:2], 2, 2, None, True, 4)
    assert len(curve_lines(curve, None, 40, BLOCKS)) == 2


def test_no_line_exceeds_the_width() -> None:
    for columns in (25, 29, 38, 78):
        assert max(len(line.text) for line in curve_lines(CURVE, 2, columns, BLOCKS)) <= columns


def test_five_digit_rates_leave_space_for_the_verdict() -> None:
    points = (
        Point(1, "core", rate(14608.0, 1206.0), True),
        Point(2, "core", rate(27807.0, 16577.0), False),
    )
    texts = [
        line.text
        for line in curve_lines(Curve("prefill", points, 2, 2, None, True, 4), 2, 40, BLOCKS)
    ]
    assert [text.split()[-3:] for text in texts] == [
        ["14,608", "±1,206", "slow"],
        ["27,807", "±16,577", "best"],
    ]
    assert max(map(len, texts)) == 40


def test_progress_names_the_round_setting_and_remaining_time() -> None:
    assert progress_text(report()) == "round 4 of 6 · writing, 2 threads · at most 38 s left"
    likely = progress_text(report(expected_left_s=20.4))
    assert likely.endswith("about 20 s left, at most 38 s")
    assert progress_text(report(measuring="")) == "warming up"
    assert progress_text(report("stopped")).startswith("Stopped")
    assert progress_text(report("unsure")) == "Done in 22 s. Some results are uncertain"


def test_pinning_is_shown_with_its_gain_or_not_at_all() -> None:
    assert pinning_line(report("done")) == ""
    pinned = Curve("decode", CURVE.points, 2, 2, None, True, 4, rate(1.12, 0.01))
    tuning_report = TuningReport((pinned,), LAPTOP, "done", "", 6, 6, 40.0, 60.0, 840, pinned=True)
    assert (
        pinning_line(tuning_report)
        == "Each thread fixed to one core: 2 threads writing +12 % (11 to 13): faster"
    )


def test_counts_with_overlapping_spreads_are_shown_as_close() -> None:
    points = (
        Point(1, "core", rate(3.0, 0.1), False),
        *(Point(n, "core", rate(5.0, 0.5), False) for n in (2, 3)),
    )
    lines = curve_lines(Curve("decode", points, 3, 3, None, False, 4), 2, 40, BLOCKS)
    assert [line.text.split()[-1] for line in lines] == ["±0.1", "close", "close"]
    assert [line.role for line in lines] == [CurveRole.PLAIN, CurveRole.CLOSE, CurveRole.CLOSE]


def test_one_measurement_has_no_spread() -> None:
    once = replace(CURVE, points=(Point(1, "core", Interval(18.2, 18.2, 18.2, 1, False), False),))
    lines = curve_lines(once, 1, 33, BLOCKS)
    assert "18.2" in lines[-1].text
    assert BLOCKS.plus_minus not in lines[-1].text
