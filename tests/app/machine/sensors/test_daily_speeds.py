"""History of speeds by day: what is kept, merged and dropped, and what made a day differ."""

from __future__ import annotations

import json
import threading
from datetime import date, datetime
from pathlib import Path

import pytest

from app.machine.sensors.daily_speeds import (
    MOST_DAYS,
    MOST_REPLIES_OF_DAY,
    DailySpeeds,
    DaySpeeds,
    Mark,
    ReplyConditions,
    as_json,
    day_of,
    from_json,
    joined,
)
from app.machine.sensors.reply_history import KnownAs, PastReply, ReplyHistory
from app.program import notices, small_file

DAY_S = 86_400.0
NOON_S = datetime(2026, 6, 1, 12).timestamp()
MODEL = KnownAs("model", "Q4_K_M", 1000)
OTHER = KnownAs("other", "Q4_K_M", 1000)
TWO = ReplyConditions(2, version="0.1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "speeds.json"


def past(tps: float, unix_s: float = NOON_S, tokens: int = 100) -> PastReply:
    return PastReply(unix_s, tokens, tps, 0.0, 0.1)


def history_of(*replies: tuple[float, float]) -> DailySpeeds:
    """Return a history of replies, each with its day and its speed."""
    history = DailySpeeds()
    for day, tps in replies:
        history = history.with_reply(NOON_S + DAY_S * day, tps, TWO)
    return history


def test_a_new_model_has_no_history(path: Path) -> None:
    assert ReplyHistory(path).daily(MODEL) == DailySpeeds()
    assert DailySpeeds().all_days() == ()


def test_replies_of_a_day_become_a_median_and_a_range(path: Path) -> None:
    history = ReplyHistory(path)
    for tps in (20.0, 26.0, 25.0):
        history.add_reply(MODEL, "mmap", past(tps), TWO)
    assert len(ReplyHistory(path).daily(MODEL).replies) == 3
    history.add_reply(MODEL, "huge", past(30.0, NOON_S + DAY_S), TWO)
    daily = ReplyHistory(path).daily(MODEL)
    today = day_of(NOON_S)
    assert [reply.tps for reply in daily.replies] == [30.0]
    assert daily.all_days() == (
        DaySpeeds(today, 3, 20.0, 25.0, 26.0),
        DaySpeeds(today + 1, 1, 30.0, 30.0, 30.0),
    )


def test_two_models_have_their_own_days(path: Path) -> None:
    history = ReplyHistory(path)
    history.add_reply(MODEL, "mmap", past(20.0), TWO)
    history.add_reply(OTHER, "mmap", past(5.0), TWO)
    speeds = [ReplyHistory(path).daily(model).replies[0].tps for model in (MODEL, OTHER)]
    assert speeds == [20.0, 5.0]


def test_short_replies_are_left_out_as_for_the_usual_speed(path: Path) -> None:
    history = ReplyHistory(path)
    history.add_reply(MODEL, "mmap", past(20.0, tokens=49), TWO)
    assert history.daily(MODEL) == DailySpeeds()
    assert history.usual(MODEL) is None


def test_measurements_are_no_part_of_the_days(path: Path) -> None:
    history = ReplyHistory(path)
    history.add_reply(MODEL, "mmap", past(20.0), TWO)
    history.add(MODEL.key("mmap", 1), past(9.0))
    assert [reply.tps for reply in history.daily(MODEL).replies] == [20.0]


def test_a_gap_leaves_days_out() -> None:
    days = history_of((0, 20.0), (30, 25.0)).all_days()
    assert [day.day - days[0].day for day in days] == [0, 30]


def test_days_older_than_the_limit_are_dropped() -> None:
    days = history_of(*((day, 20.0) for day in range(MOST_DAYS + 20))).all_days()
    assert len(days) == MOST_DAYS
    assert days[-1].day - days[0].day == MOST_DAYS - 1


def test_many_replies_of_a_day_are_bounded_and_counted() -> None:
    n_replies = 100_000
    history = DailySpeeds()
    for n in range(n_replies):
        history = history.with_reply(NOON_S, 20.0 + n % 7, TWO)
    assert len(history.replies) <= MOST_REPLIES_OF_DAY
    assert history.all_days() == (DaySpeeds(day_of(NOON_S), n_replies, 20.0, 23.0, 26.0),)


def test_a_clock_set_back_loses_nothing() -> None:
    days = history_of((0, 20.0), (1, 21.0), (-200, 22.0), (1, 23.0)).all_days()
    assert [(day.day - day_of(NOON_S), day.n_replies) for day in days] == [(0, 1), (1, 2)]
    days = history_of((0, 20.0), (1, 21.0), (-2, 22.0)).all_days()
    assert [day.day - day_of(NOON_S) for day in days] == [-2, 0, 1]


def test_marks_name_what_made_a_reply_differ(path: Path) -> None:
    history = ReplyHistory(path)

    def marks_of(conditions: ReplyConditions) -> tuple[Mark, ...]:
        history.add_reply(MODEL, "mmap", past(20.0), conditions)
        newest = history.daily(MODEL).newest()
        assert newest is not None
        return newest.marks

    assert marks_of(TWO) == ()
    assert marks_of(ReplyConditions(1, version="0.1")) == (Mark.THREADS,)
    assert marks_of(ReplyConditions(1, version="0.2")) == (Mark.VERSION,)
    busy = ReplyConditions(1, on_battery=True, is_quiet=False, version="0.2")
    assert marks_of(busy) == (Mark.BATTERY, Mark.BUSY)
    ReplyHistory(path).mark_tuned(MODEL)
    assert marks_of(ReplyConditions(2, version="0.2")) == (Mark.TUNED, Mark.THREADS)
    assert marks_of(ReplyConditions(2, version="0.2")) == ()
    (day,) = history.daily(MODEL).all_days()
    assert day.marks == tuple(Mark)


def test_replies_of_an_earlier_version_are_the_first_days(path: Path) -> None:
    path.parent.mkdir()
    rows = [[NOON_S + DAY_S * day, 100, tps, 0.0, 0.1, True] for day, tps in ((0, 4.0), (2, 6.0))]
    replies = {MODEL.key("mmap", 2): rows, MODEL.key("huge", 2): [rows[0]]}
    path.write_text(json.dumps({"version": 2, "replies": replies}))
    history = ReplyHistory(path)
    assert [(day.n_replies, day.median_tps) for day in history.daily(MODEL).all_days()] == [
        (2, 4.0),
        (1, 6.0),
    ]
    history.add_reply(MODEL, "mmap", past(8.0, NOON_S + 3 * DAY_S), TWO)
    assert [day.median_tps for day in ReplyHistory(path).daily(MODEL).all_days()] == [4.0, 6.0, 8.0]


def test_the_history_survives_its_file() -> None:
    history = history_of((0, 20.1234), (0, 25.0), (1, 21.0))
    again = from_json(json.loads(json.dumps(as_json(history))))
    assert [day.median_tps for day in again.all_days()] == [22.56, 21.0]
    assert again.conditions is not None
    assert again.conditions.threads == 2


GOOD_DAY = [date(2026, 6, 1).toordinal(), 3, 20.0, 25.0, 26.0, "TB"]


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {"days": {}, "last_day": 3},
        {"days": [GOOD_DAY[:-1], [*GOOD_DAY, 1], [-1, *GOOD_DAY[1:]], [1e300, *GOOD_DAY[1:]]]},
        {"days": [[*GOOD_DAY[:2], 30.0, 25.0, 26.0, ""], [*GOOD_DAY[:2], 0, 25.0, 26.0, ""]]},
        {"days": [[*GOOD_DAY[:5], 7], [GOOD_DAY[0], True, 20.0, 25.0, 26.0, ""]]},
        {"last_day": [[-1.0, 20.0, ""], [1.0, 1e300, ""], [1.0, float("nan"), ""], [1.0, 20.0]]},
        {"threads": True, "version": "0.1"},
        {"threads": 2, "version": 3},
        {"tuned": "yes"},
    ],
)
def test_unsound_parts_are_left_out(content: object) -> None:
    assert from_json(content) == DailySpeeds()


def test_a_file_with_many_rows_is_bounded() -> None:
    days = [[number, *GOOD_DAY[1:]] for number in range(1, 100_001)]
    replies = [[1.0, 20.0, ""]] * 100_000
    history = from_json({"days": days, "last_day": replies, "version": "x" * 9999, "threads": 1})
    assert (len(history.days), len(history.replies)) == (MOST_DAYS, MOST_REPLIES_OF_DAY)
    assert history.days[0].marks == (Mark.TUNED, Mark.BATTERY)
    assert len(json.dumps(as_json(history))) < 10_000


def test_joined_days_keep_range_and_weigh_replies() -> None:
    days = [DaySpeeds(1, 1, 4.0, 4.0, 4.0), DaySpeeds(2, 9, 18.0, 20.0, 30.0, (Mark.BUSY,))]
    assert joined(days) == DaySpeeds(2, 10, 4.0, 20.0, 30.0, (Mark.BUSY,))


@pytest.mark.parametrize("content", [b"{", b"x" * (1 << 20), b'{"version": "2"}'])
def test_a_damaged_file_is_put_aside_with_one_line(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    history = ReplyHistory(path)
    history.add_reply(MODEL, "mmap", past(20.0), TWO)
    assert (path.parent / "speeds-damaged.json").read_bytes() == content
    (line,) = notices.take_all()
    assert line.startswith(f"{path}: ")
    assert line.endswith("moved to speeds-damaged.json, a new file begins")
    assert len(ReplyHistory(path).daily(MODEL).replies) == 1


def test_a_file_of_a_newer_version_stays(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"version": 99}')
    ReplyHistory(path).add_reply(MODEL, "mmap", past(20.0), TWO)
    assert path.read_text() == '{"version": 99}'


def test_instances_that_write_at_once_lose_no_reply(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        small_file, "_LOCK_S", 30.0
    )  # Four writers on a busy machine may wait long.
    path.parent.mkdir()
    n_each = 20

    def write(model: KnownAs) -> None:
        history = ReplyHistory(path)
        for _ in range(n_each):
            history.add_reply(model, "mmap", past(20.0), TWO)

    models = [MODEL, MODEL, OTHER, OTHER]
    writers = [threading.Thread(target=write, args=[model]) for model in models]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    saved = ReplyHistory(path)
    counts = [saved.daily(model).all_days()[0].n_replies for model in (MODEL, OTHER)]
    assert counts == [2 * n_each, 2 * n_each]
