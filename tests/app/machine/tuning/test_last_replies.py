"""Replies with different types of KV cache are compared, and the change is marked."""

from __future__ import annotations

from app.machine.tuning.last_replies import LastReplies
from app.machine.tuning.speed_comparison import Verdict, compare_replies
from app.machine.tuning.threads_in_use import choice_names
from app.program.state import TunedChoice

F16 = TunedChoice(2, 2, kv_type="f16")
Q8 = TunedChoice(2, 2, kv_type="q8_0")


def times_at(tps: float, n_tokens: int = 80) -> list[float]:
    return [number / tps + 0.0001 * (number % 3) for number in range(n_tokens)]


def test_another_kv_type_is_a_change_between_two_replies():
    replies = LastReplies()
    first, second, third = times_at(20), times_at(25), times_at(25)
    replies.follow(first, F16, True)
    assert replies.kv_change() is None
    replies.follow(first, Q8, False)  # chosen once the reply had ended
    replies.follow(second, Q8, True)
    change = replies.kv_change()
    assert (change.before, change.after, change.end_s) == (F16, Q8, second[0])
    assert choice_names(change.before, change.after) == ("KV f16", "KV q8_0")
    replies.follow(third, Q8, True)
    assert replies.kv_change() is None


def test_two_replies_are_compared_with_their_uncertainty():
    replies = LastReplies()
    replies.follow(times_at(20), F16, True)
    replies.follow(times_at(25), Q8, True)
    comparison = compare_replies(replies.previous, replies.newest, lambda begin_s, end_s: 0.0)
    assert comparison.verdict is Verdict.FASTER
    assert comparison.speeds[0].choice == Q8
    assert 1.2 < comparison.ratio < 1.3


def test_a_reply_with_other_threads_in_its_midst_is_mixed():
    replies = LastReplies()
    times_s = times_at(20)
    replies.follow(times_s, F16, True)
    replies.follow(times_s, TunedChoice(1, 1, kv_type="f16"), True)
    assert replies.newest.is_mixed
