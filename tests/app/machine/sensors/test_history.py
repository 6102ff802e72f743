import json
import re
from dataclasses import replace

import pytest

from app.machine.sensors.reply_history import (
    MOST_KEYS,
    MOST_REPLIES,
    READ_GBPS,
    Basis,
    KnownAs,
    PastReply,
    ReplyHistory,
    Speeds,
    history_key,
    identity_of,
)

MODEL = KnownAs("model", "Q4_K_M", 1000)
KEY = MODEL.key("mmap", 2)


def reply(tps: float, tokens: int = 100, at_s: float = 1_700_000_000.0) -> PastReply:
    return PastReply(at_s, tokens, tps, 40.0, 6.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "speeds.json"


def test_median_and_best_speeds_are_saved(path):
    history = ReplyHistory(path)
    assert history.earlier(MODEL) is None
    for tps, at_s in ((4.0, 1.0), (6.0, 2.0), (5.0, 3.0)):
        history.add(KEY, reply(tps, at_s=at_s))
    earlier = ReplyHistory(path).earlier(MODEL)
    assert (earlier.n_replies, earlier.median_tps, earlier.best_tps, earlier.best_unix_s) == (
        3,
        5.0,
        6.0,
        2.0,
    )
    assert ReplyHistory(path).earlier(KnownAs("model", "Q8_0", 1000)) is None


def test_the_file_holds_numbers_and_no_text(path):
    history = ReplyHistory(path)
    history.add(KEY, reply(4.0))
    history.remember_rates(KEY, {READ_GBPS: 12.1}, is_quiet=True)
    content = path.read_text()
    words = {"version", "rates", "read_gbps", "replies", "models", "true"}
    assert set(re.findall(r"[a-z_]{3,}", re.sub(r"[0-9a-f]{16}", "", content))) == words


def test_short_replies_do_not_count_for_speed(path):
    history = ReplyHistory(path)
    history.add(KEY, reply(4.0, tokens=49))
    assert history.earlier(MODEL) is None
    assert not path.exists()


def test_without_a_file_the_history_stays_in_memory():
    history = ReplyHistory()
    history.add(KEY, reply(4.0))
    assert history.earlier(MODEL).best_tps == 4.0


def test_the_file_stays_small(path):
    history = ReplyHistory(path)
    for n in range(MOST_REPLIES + 5):
        history.add(KEY, reply(1.0 + n))
    assert history.earlier(MODEL).n_replies == MOST_REPLIES
    for n in range(MOST_KEYS + 5):
        history.add(history_key(f"{n:016x}", 2), reply(1.0))
    assert history.earlier(MODEL) is None
    assert len(json.loads(path.read_text())["replies"]) == MOST_KEYS


def test_two_instances_keep_the_replies_of_both(path):
    first = ReplyHistory(path)
    second = ReplyHistory(path)
    first.add(KEY, reply(4.0))
    second.add(KEY, reply(6.0))
    assert ReplyHistory(path).earlier(MODEL).n_replies == 2


def test_the_best_measurement_of_the_memory_is_kept(path):
    history = ReplyHistory(path)
    assert history.rates(KEY) == {}
    assert history.remember_rates(KEY, {READ_GBPS: 12.0}, is_quiet=True) == {READ_GBPS: 12.0}
    assert history.remember_rates(KEY, {READ_GBPS: 9.0}, is_quiet=True) == {READ_GBPS: 12.0}
    assert ReplyHistory(path).rates(KEY) == {READ_GBPS: 12.0}


def test_a_busy_machine_only_adds_faster_measurements(path):
    history = ReplyHistory(path)
    decode = "decode_gbps Q4_K"
    assert history.remember_rates(KEY, {READ_GBPS: 3.0, decode: 2.0}, is_quiet=False) == {}
    assert not path.exists()
    history.remember_rates(KEY, {READ_GBPS: 12.0}, is_quiet=True)
    assert history.remember_rates(KEY, {READ_GBPS: 13.0, decode: 2.0}, is_quiet=False) == {
        READ_GBPS: 13.0
    }
    assert history.remember_rates(KEY, {READ_GBPS: 3.0}, is_quiet=False) == {READ_GBPS: 13.0}


def test_replies_from_busy_times_do_not_count_as_usual(path):
    history = ReplyHistory(path)
    history.add(KEY, replace(reply(4.0), is_quiet=False))
    history.add(KEY, replace(reply(5.0), is_quiet=False))
    assert history.usual(MODEL) == Speeds(5.0, 40.0, 2, Basis.BUSY, Basis.BUSY)
    history.add(KEY, reply(9.0))
    history.add(KEY, replace(reply(2.0), is_quiet=False))
    assert ReplyHistory(path).usual(MODEL) == Speeds(9.0, 40.0, 2, *2 * [Basis.MEASURED])
    assert (
        ReplyHistory(path).earlier(MODEL).median_tps,
        ReplyHistory(path).earlier(MODEL).best_tps,
    ) == (9.0, 9.0)


def test_short_prompts_do_not_count_as_usual_prefill(path):
    history = ReplyHistory(path)
    history.add(KEY, replace(reply(4.0), prefill_tps=0.0))
    history.add(KEY, replace(reply(4.0), prefill_tps=0.0))
    history.add(KEY, reply(4.0))
    assert history.usual(MODEL) == Speeds(4.0, 40.0, 2, *2 * [Basis.MEASURED])


def test_saved_speeds_of_short_texts_do_not_count(path):
    path.parent.mkdir()
    rows = [[1.0, 22, 9.0, 93.6, 5.0, True], [1.0, 60, 5.0, 93.6, 0.3, True]]
    path.write_text(json.dumps({"version": 2, "replies": {KEY: rows}}))
    assert ReplyHistory(path).usual(MODEL) == Speeds(5.0, 0.0, 2, Basis.MEASURED)


def test_the_fastest_quiet_setting_is_the_usual_one(path):
    history = ReplyHistory(path)
    history.add(MODEL.key("mmap", 2), reply(5.0))
    history.add(MODEL.key("huge", 2), reply(6.0))
    history.add(MODEL.key("mmap", 1), replace(reply(9.0), is_quiet=False))
    assert history.usual(MODEL) == Speeds(6.0, 40.0, 2, *2 * [Basis.MEASURED])
    assert history.earlier(MODEL).n_replies == 3


GOOD_ROW = [1_700_000_000.0, 100, 5.0, 40.0, 1.5, True]


NOT_SOUND = (
    *({"replies": replies}
      for replies in ({"../../etc": [GOOD_ROW]}, {KEY: {"a": 1}}, {KEY: [None]},
                      {KEY: [GOOD_ROW, [1]]})),
    *({"replies": {KEY: [[*GOOD_ROW[:position], value, *GOOD_ROW[position + 1 :]]]}}
      for position, value in ((0, 1e300), (0, 10**400), (1, True), (2, -5.0), (2, 0),
                        (2, float("nan")),
                        (3, float("inf")),
                        (5, 1))),
    *({"rates": {KEY: rates}} for rates in ({READ_GBPS: -1}, {"x": 1}, {READ_GBPS: 10**400},
                                            {"decode_gbps Q\n": 2})),
)  # fmt: skip


def test_damaged_and_hostile_files_are_ignored(path):
    path.parent.mkdir()
    sound = {"version": 2, "replies": {KEY: [GOOD_ROW]}, "rates": {KEY: {READ_GBPS: 12.0}}}
    path.write_text(json.dumps(sound))
    assert ReplyHistory(path).earlier(MODEL).best_tps == 5.0
    for change in ({"version": "2"}, *NOT_SOUND):
        path.write_text(json.dumps(sound | change))
        history = ReplyHistory(path)
        n_sound = (
            1
            if change.keys() == {"rates"} or [1] in [*change.get("replies", {}).get(KEY, ())]
            else 0
        )
        assert (history.earlier(MODEL) is not None, bool(history.rates(KEY))) == (
            n_sound,
            change.keys() == {"replies"},
        ), change
        history.add(KEY, reply(4.0))
        assert ReplyHistory(path).earlier(MODEL).n_replies == n_sound + 1


def test_good_rows_between_bad_ones_are_kept(path):
    path.parent.mkdir()
    path.write_text(json.dumps({"version": 2, "replies": {KEY: [None, GOOD_ROW, [1]]}}))
    assert ReplyHistory(path).earlier(MODEL).best_tps == 5.0


def test_identities_differ_if_figures_are_not_comparable():
    identity = identity_of("model", "Q4_K_M", 1000, "mmap")
    assert identity == identity_of("model", "Q4_K_M", 1000, "mmap")
    assert identity != identity_of("model", "Q4_K_M", 1000, "huge")
    assert re.fullmatch("[0-9a-f]{16}", identity_of("evil\ud800\0name"))
