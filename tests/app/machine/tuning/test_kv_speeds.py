"""Replies before and after a change of the KV cache are compared once."""

from __future__ import annotations

from app.machine.tuning.kv_speeds import KvSpeeds


def test_the_reply_after_a_change_is_compared_once():
    speeds = KvSpeeds()
    assert speeds.end_reply("f16", 37.2) == ""
    speeds.begin("f16", is_running=False)
    assert speeds.end_reply("q8_0", 0.0) == ""
    line = speeds.end_reply("q8_0", 38.4)
    assert line.startswith("KV cache q8_0: 38.4 tok/s (f16: 37.2;")
    assert speeds.end_reply("q8_0", 38.4) == ""


def test_a_running_reply_counts_as_before():
    speeds = KvSpeeds()
    speeds.begin("f16", is_running=True)
    assert speeds.end_reply("f16", 30.0) == ""
    assert speeds.end_reply("q4_0", 33.0).startswith("KV cache q4_0: 33.0 tok/s (f16: 30.0;")


def test_a_change_that_was_undone_says_nothing():
    speeds = KvSpeeds()
    speeds.end_reply("f16", 37.2)
    speeds.begin("f16", is_running=False)
    speeds.begin("q8_0", is_running=False)
    assert speeds.end_reply("f16", 37.0) == ""
    assert speeds.end_reply("f16", 37.0) == ""
