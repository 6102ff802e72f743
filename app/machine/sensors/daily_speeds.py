"""Speeds of a model's replies by day, and what made a day differ.

The replies of the last day are single figures; earlier days have a median and a range. So the size
of a record does not depend on the number of replies. Replies that are too short for the usual speed
are left out here, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, time
from enum import Enum
from functools import lru_cache
from typing import Any

from app.text.record import record

MOST_DAYS = 90
"""Days of the history, today included."""
MOST_REPLIES_OF_DAY = 100
"""Limit on single replies; the earlier ones are merged into the record of their day."""
_LAST_UNIX_S = 32e9
"""Latest time that calendars can show safely."""
_LARGEST_TPS = 1e9
_LAST_DAY = date.max.toordinal()
_MOST_VERSION_CHARS = 24


class Mark(str, Enum):
    """Reason why speeds of a day differ; its value is the letter in files and pictures."""

    TUNED = "T"
    """Kept choice of tuning, since the reply before."""
    VERSION = "V"
    """New version of the program."""
    THREADS = "N"
    """Changed number of threads."""
    BATTERY = "B"
    BUSY = "O"
    """Other programs used the processor."""


MARK_WORDS = {
    Mark.TUNED: "tuned",
    Mark.VERSION: "new version",
    Mark.THREADS: "number of threads",
    Mark.BATTERY: "on battery",
    Mark.BUSY: "other programs",
}
"""Explanations of the letters, the most important mark first."""


@record
class ReplyConditions:
    """Circumstances of a reply."""

    threads: int
    on_battery: bool = False
    is_quiet: bool = True
    version: str = ""
    """Version of the program."""


@record
class ReplySpeed:
    """Speed of one reply."""

    finished_unix_s: float
    tps: float
    marks: tuple[Mark, ...] = ()


@record
class DaySpeeds:
    """Speeds of the replies of one day in tokens per second."""

    day: int
    """Ordinal number of the date."""
    n_replies: int
    slowest_tps: float
    median_tps: float
    fastest_tps: float
    marks: tuple[Mark, ...] = ()


@record
class DailySpeeds:
    """History of one model."""

    days: tuple[DaySpeeds, ...] = ()
    """Days in their order, without the replies below."""
    replies: tuple[ReplySpeed, ...] = ()
    """Single replies of the day that was saved last."""
    conditions: ReplyConditions | None = None
    """Conditions of the last reply; None if unknown."""
    is_tuned_since: bool = False
    """Whether a choice was kept after the last reply."""

    def __hash__(self) -> int:
        """Return a hash that does not look at each day: drawing looks histories up often."""
        return hash((len(self.days), self.replies[-1:]))

    def all_days(self) -> tuple[DaySpeeds, ...]:
        """Return all days in their order, also that of the single replies."""
        return self._merged().days

    def newest(self) -> ReplySpeed | None:
        """Return the reply that was saved last; None if it is not a single figure anymore."""
        if self.replies:
            return self.replies[-1]
        return None

    def with_reply(
        self, finished_unix_s: float, tps: float, conditions: ReplyConditions
    ) -> DailySpeeds:
        """Return the history with one more reply."""
        speed = ReplySpeed(finished_unix_s, tps, self._marks_of(conditions))
        day = day_of(finished_unix_s)
        is_same_day = all(day_of(reply.finished_unix_s) == day for reply in self.replies)
        history = self
        if not is_same_day or len(self.replies) >= MOST_REPLIES_OF_DAY:
            history = self._merged()
        # Days after this one are from a time when the clock was ahead, and may be right.
        recent = [earlier for earlier in history.days if earlier.day > day - MOST_DAYS]
        return DailySpeeds(tuple(recent[-MOST_DAYS:]), (*history.replies, speed), conditions)

    def _marks_of(self, conditions: ReplyConditions) -> tuple[Mark, ...]:
        marks = []
        earlier = self.conditions
        if self.is_tuned_since:
            marks.append(Mark.TUNED)
        if earlier is not None and earlier.version not in ("", conditions.version):
            marks.append(Mark.VERSION)
        if earlier is not None and earlier.threads not in (0, conditions.threads):
            marks.append(Mark.THREADS)
        if conditions.on_battery:
            marks.append(Mark.BATTERY)
        if not conditions.is_quiet:
            marks.append(Mark.BUSY)
        return tuple(marks)

    def _merged(self) -> DailySpeeds:
        """Return the history with the single replies merged into the records of their days."""
        by_day = {day.day: day for day in self.days}
        for day in days_of(self.replies):
            if day.day in by_day:
                day = joined([by_day[day.day], day])
            by_day[day.day] = day
        days = tuple(by_day[number] for number in sorted(by_day))
        return replace(self, days=days, replies=())


def day_of(unix_s: float) -> int:
    """Return the ordinal number of the local date; 0 for a time that calendars cannot show."""
    with suppress(ValueError, OverflowError, OSError):
        return date.fromtimestamp(unix_s).toordinal()
    return 0


def noon_of(day: int) -> float:
    """Return the time of noon on a day."""
    return datetime.combine(date.fromordinal(day), time(12)).timestamp()


def days_of(replies: Iterable[ReplySpeed]) -> list[DaySpeeds]:
    """Return the days of some replies, in their order."""
    import statistics  # module imports would delay the first frame

    by_day: dict[int, list[ReplySpeed]] = {}
    for reply in replies:
        by_day.setdefault(day_of(reply.finished_unix_s), []).append(reply)
    days = []
    for day in sorted(by_day):
        speeds = [reply.tps for reply in by_day[day]]
        marks = _in_order(mark for reply in by_day[day] for mark in reply.marks)
        median = statistics.median(speeds)
        days.append(DaySpeeds(day, len(speeds), min(speeds), median, max(speeds), marks))
    return days


def joined(days: Sequence[DaySpeeds]) -> DaySpeeds:
    """Return several days as one, with the number of the last; days with many replies weigh
    more.
    """
    n_replies = sum(day.n_replies for day in days)
    n_before = 0
    for day in sorted(days, key=lambda day: day.median_tps):
        median = day.median_tps
        n_before += day.n_replies
        if 2 * n_before >= n_replies:
            break
    return DaySpeeds(
        max(day.day for day in days),
        n_replies,
        min(day.slowest_tps for day in days),
        median,
        max(day.fastest_tps for day in days),
        _in_order(mark for day in days for mark in day.marks),
    )


def _in_order(marks: Iterable[Mark]) -> tuple[Mark, ...]:
    present = set(marks)
    return tuple(mark for mark in MARK_WORDS if mark in present)


# ---- as JSON


def as_json(history: DailySpeeds) -> dict[str, Any]:
    """Return a history as a JSON object."""
    content: dict[str, Any] = {
        "days": [
            [
                day.day,
                day.n_replies,
                *_rounded(day.slowest_tps, day.median_tps, day.fastest_tps),
                _letters(day.marks),
            ]
            for day in history.days
        ],
        "last_day": [
            [round(reply.finished_unix_s), *_rounded(reply.tps), _letters(reply.marks)]
            for reply in history.replies
        ],
    }
    if history.conditions is not None:
        content["threads"] = history.conditions.threads
        content["version"] = history.conditions.version[:_MOST_VERSION_CHARS]
    if history.is_tuned_since:
        content["tuned"] = True
    return content


def from_json(content: object) -> DailySpeeds:
    """Return the history of a JSON object, without its unsound parts."""
    if not isinstance(content, Mapping):
        return DailySpeeds()
    days = {day.day: day for row in _rows(content, "days") if (day := _day_from(row))}
    replies = [reply for row in _rows(content, "last_day") if (reply := _reply_from(row))]
    threads = content.get("threads")
    version = content.get("version")
    conditions = None
    if type(threads) is int and 0 < threads <= 10_000 and isinstance(version, str):
        conditions = ReplyConditions(threads, version=version[:_MOST_VERSION_CHARS])
    return DailySpeeds(
        tuple(days[number] for number in sorted(days)[-MOST_DAYS:]),
        tuple(replies[-MOST_REPLIES_OF_DAY:]),
        conditions,
        content.get("tuned") is True,
    )


def _rows(content: Mapping[str, Any], name: str) -> list[object]:
    rows = content.get(name)
    if isinstance(rows, list):
        return rows
    return []


def _day_from(row: object) -> DaySpeeds | None:
    numbers, letters = _row_of(row, 5)
    if not numbers:
        return None
    number, n_replies, slowest, median, fastest = numbers
    is_sound = 0 < slowest <= median <= fastest <= _LARGEST_TPS
    if not is_sound or type(number) is not int or type(n_replies) is not int:
        return None
    if not (0 < number <= _LAST_DAY and 0 < n_replies <= _LARGEST_TPS):
        return None
    return DaySpeeds(number, n_replies, slowest, median, fastest, _marks_from(letters))


def _reply_from(row: object) -> ReplySpeed | None:
    numbers, letters = _row_of(row, 2)
    if not numbers:
        return None
    finished_unix_s, tps = numbers
    if not (0 <= finished_unix_s <= _LAST_UNIX_S and 0 < tps <= _LARGEST_TPS):
        return None
    return ReplySpeed(finished_unix_s, tps, _marks_from(letters))


def _row_of(row: object, n_numbers: int) -> tuple[list[float], str]:
    """Return the numbers and the letters of a row; no numbers if it has another form.

    There can be thousands of rows, so this is faster than ``checked``.
    """
    if not isinstance(row, list) or len(row) != n_numbers + 1 or not isinstance(row[-1], str):
        return [], ""
    numbers = row[:-1]
    if any(type(number) not in (int, float) for number in numbers):
        return [], ""
    return numbers, row[-1]


def _letters(marks: Sequence[Mark]) -> str:
    return "".join(mark.value for mark in marks)


@lru_cache(maxsize=64)
def _marks_from(letters: str) -> tuple[Mark, ...]:
    return tuple(mark for mark in MARK_WORDS if mark.value in letters[: len(MARK_WORDS)])


def _rounded(*rates_tps: float) -> list[float]:
    return [float(f"{tps:.4g}") for tps in rates_tps]
