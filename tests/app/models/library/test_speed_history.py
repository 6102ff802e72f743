"""Columns and lines of the history of a model's speeds."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime, time, timedelta

import pytest

from app.machine.sensors.daily_speeds import DailySpeeds, Mark, ReplyConditions
from app.models.library.speed_history import (
    columns_of,
    dated_sparkline,
    marks_text,
    sparkline,
    totals_text,
)
from app.text.glyphs import ASCII, BLOCKS

TODAY = date(2026, 11, 28)
NUMBER = TODAY.toordinal()
NOON = datetime.combine(TODAY, time(12))
TWO = ReplyConditions(2, version="0.1")


def history_of(*replies: tuple[float, float]) -> DailySpeeds:
    """Return a history of replies, each with its days ago and its speed."""
    history = DailySpeeds()
    for n_days_ago, tps in replies:
        finished = NOON - timedelta(days=n_days_ago)
        history = history.with_reply(finished.timestamp(), tps, TWO)
    return history


def dense() -> DailySpeeds:
    """Return a history of three replies on each of 90 days."""
    replies = [(n - k / 10, 20.0 + k) for n in range(89, -1, -1) for k in range(3)]
    return history_of(*replies)


def test_no_reply_has_no_columns() -> None:
    assert columns_of(DailySpeeds(), NUMBER, 60).columns == ()
    assert dated_sparkline(DailySpeeds(), NUMBER, 60, BLOCKS) == ""
    assert totals_text(DailySpeeds(), NUMBER) == marks_text(DailySpeeds(), NUMBER) == ""


def test_one_reply_is_one_column_with_its_time() -> None:
    history = history_of((0, 24.0))
    chart = columns_of(history, NUMBER, 60)
    assert len(chart.columns) == 1
    assert (chart.first_label, chart.last_label) == ("28 Nov 12:00", "")
    assert dated_sparkline(history, NUMBER, 40, BLOCKS) == "█ 28 Nov 12:00"
    assert totals_text(history, NUMBER) == "1 reply"


def test_replies_of_one_day_have_a_column_each() -> None:
    history = history_of((0.2, 24.0), (0.1, 12.0), (0, 18.0))
    chart = columns_of(history, NUMBER, 60)
    assert sparkline(chart, BLOCKS) == "█▄▆"
    assert (chart.first_label, chart.last_label) == ("28 Nov 07:12", "12:00")
    assert dated_sparkline(history, NUMBER, 40, BLOCKS) == "█▄▆ since 28 Nov 07:12"
    assert dated_sparkline(history, NUMBER, 21, BLOCKS) == "▅█ since 28 Nov 09:36"
    assert totals_text(history, NUMBER) == "3 replies, 12.0 to 24.0 tok/s"


def test_ninety_days_fit_sixty_columns() -> None:
    history = dense()
    chart = columns_of(history, NUMBER, 60)
    assert len(chart.columns) == 60
    assert all(chart.columns)
    assert chart.n_replies == 270
    assert (chart.first_label, chart.last_label) == ("31 Aug", "28 Nov")
    first = chart.columns[0]
    assert first is not None
    assert (first.slowest_tps, first.median_tps, first.fastest_tps) == (20.0, 21.0, 22.0)
    assert len(columns_of(history, NUMBER, 200).columns) == 90


def test_a_gap_of_thirty_days_stays_empty() -> None:
    history = history_of((31, 20.0), (0, 20.0))
    chart = columns_of(history, NUMBER, 60)
    assert sparkline(chart, BLOCKS) == f"█{' ' * 30}█"
    assert sparkline(chart, ASCII, "-") == f"#{'-' * 30}#"


def test_days_that_the_clock_has_not_reached_are_left_out() -> None:
    history = history_of((-400, 99.0), (1, 20.0), (0, 20.0))
    chart = columns_of(history, NUMBER, 60)
    assert [column.fastest_tps for column in chart.columns if column] == [20.0, 20.0]
    assert columns_of(history_of((-1, 20.0)), NUMBER, 60).columns == ()
    assert columns_of(history_of((200, 20.0)), NUMBER, 60).columns == ()


@pytest.mark.parametrize("width", [0, 10, 13, 20, 40, 200])
def test_the_line_keeps_its_width(width: int) -> None:
    text = dated_sparkline(dense(), NUMBER, width, BLOCKS)
    assert len(text) <= width
    assert bool(text) == (width > len("since 31 Aug "))


def test_marks_have_their_newest_date() -> None:
    history = DailySpeeds()
    for n_days_ago, conditions in (
        (20, TWO),
        (12, ReplyConditions(1, version="0.2")),
        (3, ReplyConditions(1, on_battery=True, version="0.2")),
        (2, ReplyConditions(1, on_battery=True, is_quiet=False, version="0.2")),
    ):
        finished = NOON - timedelta(days=n_days_ago)
        if n_days_ago == 12:
            history = replace(history, is_tuned_since=True)
        history = history.with_reply(finished.timestamp(), 20.0, conditions)
    assert marks_text(history, NUMBER) == (
        "tuned 16 Nov, new version 16 Nov, number of threads 16 Nov, on battery 26 Nov, "
        "other programs 26 Nov"
    )
    assert columns_of(history, NUMBER, 60).marks == tuple(Mark)
