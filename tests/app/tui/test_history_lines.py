"""Panel with the history of a model's speeds."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, time, timedelta

import pytest

from app.machine.sensors.daily_speeds import DailySpeeds, ReplyConditions
from app.machine.sensors.reply_history import Basis, PastSpeeds, Speeds
from app.text.glyphs import ASCII, BLOCKS, Glyphs
from app.tui.drawing.lines import text_of, width_of
from app.tui.speed.history_lines import has_history, history_foot, history_panel
from app.tui.speed.watch import PerformanceView
from tests.app.machine.sensors.views import TODAY, busy_weeks, view

NOON = datetime.combine(TODAY, time(12))
QUIET = ReplyConditions(2)
ONE_DAY = ((0.2, 24.0, QUIET), (0.1, 12.0, ReplyConditions(2, is_quiet=False)), (0, 18.0, QUIET))


def view_of(
    *replies: tuple[float, float, ReplyConditions], usual_tps: float = 0
) -> PerformanceView:
    """Return a view with replies, each with its days ago and its speed."""
    daily = DailySpeeds()
    for n_days_ago, tps, conditions in replies:
        finished = NOON - timedelta(days=n_days_ago)
        daily = daily.with_reply(finished.timestamp(), tps, conditions)
    earlier = None
    if usual_tps:
        speeds = Speeds(usual_tps, 0.0, 2, Basis.MEASURED)
        earlier = PastSpeeds(speeds, 9, usual_tps, NOON.timestamp())
    original = view()
    return replace(original, figures=replace(original.figures, daily=daily, earlier=earlier))


def text_lines(shown: PerformanceView, width: int = 44, rows: int = 0) -> list[str]:
    return [text_of(row) for row in history_panel(shown, BLOCKS, width, rows)]


def test_no_reply_has_no_history() -> None:
    assert not has_history(view_of())
    assert history_foot(view_of(), 40, BLOCKS) == ()


def test_three_replies_of_a_day_are_three_bars() -> None:
    assert text_lines(view_of(*ONE_DAY, usual_tps=18.0)) == [
        "╭─ History ─────── usual 18.0 · best 24.0 ─╮",
        "│   30 ▃▃▃▃▃                               │",
        "│      █████ ▂▂▂▂▂ ▆▆▆▆▆                   │",
        "│      █████ █████ █████                   │",
        "│    0 ────────O─────────                  │",
        "│      28 Nov 07:12 12:00                  │",
        "╰─ O other programs ───────────────────────╯",
    ]


def test_a_day_with_a_range_has_its_slowest_and_fastest() -> None:
    replies = [(1.0, tps, QUIET) for tps in (5.0, 20.0, 30.0)]
    rows = text_lines(view_of(*replies, (0, 20.0, QUIET)), 44, 8)
    assert rows[1:5] == [
        "│   30   │                                 │",
        "│      ▅▅▅▅▅ ▅▅▅▅▅                         │",
        "│      ▒▒▒▒▒ █████                         │",
        "│      █████ █████                         │",
    ]
    assert "▒│ slowest and fastest" in rows[-1]


@pytest.mark.parametrize("glyphs", [BLOCKS, ASCII])
@pytest.mark.parametrize("width", [20, 38, 58, 100])
@pytest.mark.parametrize("rows", [4, 6, 7, 12])
def test_the_panel_has_its_size(glyphs: Glyphs, width: int, rows: int) -> None:
    for shown in (view(), view_of(*ONE_DAY), view_of((0, 24.0, QUIET))):
        drawn = history_panel(shown, glyphs, width, rows)
        assert len(drawn) == rows
        assert {width_of(row) for row in drawn} == {width}
        assert width_of(history_foot(shown, width, glyphs)) <= width


def test_the_line_has_bars_since_the_first_day() -> None:
    foot = text_of(history_foot(view(), 32, BLOCKS))
    assert foot.startswith("History ")
    assert foot.endswith(" since 9 Sep")


def test_usual_and_best_are_those_of_the_speed_above() -> None:
    shown = view()
    assert shown.figures.daily == busy_weeks()
    (title, *_) = text_lines(shown, 70)
    assert "usual 4.9 · best 5.3 · latest 5.1" in title


def test_a_usual_speed_of_busy_times_is_named_so() -> None:
    original = view_of(*ONE_DAY)
    busy = PastSpeeds(Speeds(18.0, 0.0, 2, Basis.BUSY), 3, 24.0, NOON.timestamp())
    figures = replace(original.figures, earlier=busy)
    (title, *_) = text_lines(replace(original, figures=figures), 70)
    assert "while busy 18.0 · best 24.0" in title
