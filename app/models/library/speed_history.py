"""The history of a model's speeds in columns of text: bars of equal time, and a line of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from functools import lru_cache

from app.machine.sensors.daily_speeds import (
    MARK_WORDS,
    MOST_DAYS,
    DailySpeeds,
    DaySpeeds,
    Mark,
    ReplySpeed,
    joined,
)
from app.text import figures
from app.text.glyphs import Glyphs
from app.text.record import record


@record
class HistoryColumns:
    """Columns of a chart from the past to today."""

    columns: tuple[DaySpeeds | None, ...] = ()
    """Speeds of equal spans of time; None for a span without replies."""
    first_label: str = ""
    last_label: str = ""
    """Date or time of the first and the last column; the last is empty if it is the same."""

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Marks of all columns, the most important first."""
        present = {mark for column in self.columns if column for mark in column.marks}
        return tuple(mark for mark in MARK_WORDS if mark in present)

    @property
    def n_replies(self) -> int:
        """Number of replies in all columns."""
        return sum(column.n_replies for column in self.columns if column)


def shown_days(daily: DailySpeeds, today: int) -> list[DaySpeeds]:
    """Return the days of the history, without those that the clock has not reached."""
    return [day for day in daily.all_days() if today - MOST_DAYS < day.day <= today]


@lru_cache(maxsize=16)  # the performance screen asks again with every frame
def columns_of(daily: DailySpeeds, today: int, most_columns: int) -> HistoryColumns:
    """Return at most ``most_columns`` columns of the last 90 days, from the first reply on.

    If all replies are of one day, each has a column.

    Args:
        today: ordinal number of the date.
    """
    days = shown_days(daily, today)
    if not days or most_columns < 1:
        return HistoryColumns()
    if len(days) == 1 and days[0].n_replies == len(daily.replies):
        return _columns_of_replies(daily.replies[-most_columns:], days[0].day)
    first_day = days[0].day
    n_days = today - first_day + 1
    n_columns = min(n_days, most_columns)
    spans: list[list[DaySpeeds]] = [[] for _ in range(n_columns)]
    for day in days:
        spans[(day.day - first_day) * n_columns // n_days].append(day)
    columns = tuple(joined(span) if span else None for span in spans)
    if n_days == 1:
        return HistoryColumns(columns, date_text(today))
    return HistoryColumns(columns, date_text(first_day), date_text(today))


def _columns_of_replies(replies: Sequence[ReplySpeed], day: int) -> HistoryColumns:
    columns = tuple(
        DaySpeeds(day, 1, reply.tps, reply.tps, reply.tps, reply.marks) for reply in replies
    )
    first_time, last_time = (_time_text(reply) for reply in (replies[0], replies[-1]))
    if first_time == last_time:
        last_time = ""
    return HistoryColumns(columns, f"{date_text(day)} {first_time}", last_time)


def _time_text(reply: ReplySpeed) -> str:
    return datetime.fromtimestamp(reply.finished_unix_s).strftime("%H:%M")


def date_text(day: int) -> str:
    """Return a date such as "14 Nov"."""
    return date.fromordinal(day).strftime("%d %b").lstrip("0")


def sparkline(chart: HistoryColumns, glyphs: Glyphs, gap: str = " ") -> str:
    """Return a character for each column, as high as its median speed.

    Args:
        gap: character of a column without replies.
    """
    top_tps = max((column.median_tps for column in chart.columns if column), default=0.0)
    steps = len(glyphs.levels) - 1
    return "".join(
        glyphs.levels[max(1, round(column.median_tps / top_tps * steps))] if column else gap
        for column in chart.columns
    )


def dated_sparkline(daily: DailySpeeds, today: int, width: int, glyphs: Glyphs) -> str:
    """Return a line of bars with the date of the first; empty without replies or without room."""
    chart = columns_of(daily, today, width)
    n_cells = width - len(f" since {chart.first_label}")
    if len(chart.columns) > n_cells:
        chart = columns_of(daily, today, n_cells)
    if not chart.columns:
        return ""
    beginning = f"since {chart.first_label}"
    if len(chart.columns) == 1:
        beginning = chart.first_label
    return f"{sparkline(chart, glyphs, glyphs.line)} {beginning}"


def marks_text(daily: DailySpeeds, today: int) -> str:
    """Return the newest date of each mark, such as "tuned 12 Nov, on battery 20 Nov"."""
    newest = {mark: day.day for day in shown_days(daily, today) for mark in day.marks}
    words = [
        f"{MARK_WORDS[mark]} {date_text(newest[mark])}" for mark in MARK_WORDS if mark in newest
    ]
    return ", ".join(words)


def totals_text(daily: DailySpeeds, today: int) -> str:
    """Return the number of replies and their range of speeds; empty if there are none."""
    days = shown_days(daily, today)
    if not days:
        return ""
    slowest = figures.rate(min(day.slowest_tps for day in days))
    fastest = figures.rate(max(day.fastest_tps for day in days))
    replies = replies_text(sum(day.n_replies for day in days))
    if slowest == fastest:
        return replies
    return f"{replies}, {slowest} to {fastest} tok/s"


def replies_text(n_replies: int) -> str:
    """Return a number of replies in words."""
    return f"{figures.count(n_replies)} {'reply' if n_replies == 1 else 'replies'}"
