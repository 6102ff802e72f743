"""Comparison of speeds within a reply, on made times of tokens."""

import random

import pytest

from app.machine.tuning.speed_comparison import (
    LEAST_TOKENS,
    MOST_TOKENS,
    Verdict,
    compare_choices,
    mean_time,
    steady_gaps,
)
from app.machine.tuning.threads_in_use import ChoiceChange
from app.program.state import TunedChoice

TWO = TunedChoice(2, 2, weights="mmap")
ONE = TunedChoice(1, 2, weights="mmap")


def quiet(begin_s, end_s):
    return 0.0


class MadeReply:
    """Times of tokens, and the changes between them."""

    def __init__(self, seed=1, noise=0.03, stutters=0.0, drift=0.0):
        self._random = random.Random(seed)
        self._noise = noise
        self._stutters = stutters
        self._drift = drift
        self._error = 0.0
        self.times_s = [100.0]
        self.changes = []

    def write(self, n_tokens, tps):
        for _ in range(n_tokens):
            own = self._random.gauss(0, self._noise)
            self._error = self._drift * self._error + (1 - self._drift**2) ** 0.5 * own
            gap_s = max(0.3, 1 + self._error) / tps
            if self._random.random() < self._stutters:
                gap_s += self._random.uniform(1, 8) / tps
            self.times_s.append(self.times_s[-1] + gap_s)
        return self

    def change(self, before, after, seconds=0.0):
        begin_s = self.times_s[-1]
        self.changes.append(ChoiceChange(begin_s, begin_s + seconds, before, after))
        if seconds:
            self.times_s.append(begin_s + seconds)
        return self

    def compare(self, others_cores=quiet):
        return compare_choices(self.times_s, self.changes, others_cores)


def test_nothing_is_compared_without_a_change():
    assert MadeReply().write(100, 25).compare() is None
    reply = MadeReply().write(50, 25).change(TWO, TunedChoice(2, 1, weights="mmap")).write(50, 25)
    assert reply.compare() is None, "other threads read the prompt"
    assert compare_choices([], [ChoiceChange(1, 1, TWO, ONE)], quiet) is None


def test_a_change_before_the_reply_does_not_count():
    reply = MadeReply()
    reply.changes.append(ChoiceChange(50.0, 50.0, ONE, TWO))
    assert reply.write(100, 25).compare() is None


def test_one_and_two_threads_are_told_apart_with_their_errors():
    reply = MadeReply(stutters=0.03).write(120, 25.1).change(TWO, ONE).write(120, 12.8)
    comparison = reply.compare()
    assert comparison.verdict is Verdict.FASTER
    fast, slow = comparison.speeds
    assert (fast.choice.decode, slow.choice.decode) == (2, 1)
    assert fast.tps == pytest.approx(25.1, abs=fast.half_width_tps)
    assert slow.tps == pytest.approx(12.8, abs=slow.half_width_tps)
    assert 0 < fast.half_width_tps < 1
    assert comparison.ratio == pytest.approx(25.1 / 12.8, rel=0.02)


def test_the_faster_choice_comes_first_whatever_the_order():
    comparison = MadeReply().write(60, 12).change(ONE, TWO).write(60, 24).compare()
    assert [speed.choice.decode for speed in comparison.speeds] == [2, 1]
    assert comparison.ratio > 1


@pytest.mark.parametrize("seed", range(5))
def test_a_small_difference_is_too_close_at_first(seed):
    reply = MadeReply(seed, noise=0.2).write(60, 25).change(TWO, ONE).write(40, 25.5)
    assert reply.compare().verdict is Verdict.OPEN
    assert not reply.compare().is_final


@pytest.mark.parametrize("seed", range(5))
def test_an_equal_speed_is_no_difference_that_counts(seed):
    reply = MadeReply(seed).write(250, 25).change(TWO, ONE).write(250, 25)
    assert reply.compare().verdict is Verdict.EQUAL
    assert reply.compare().is_final


def test_equal_speeds_that_drift_are_rarely_called_different():
    n_wrong = 0
    for seed in range(60):
        reply = MadeReply(seed, stutters=0.02, drift=0.9).write(200, 25).change(TWO, ONE)
        for _ in range(10):  # the screen looks again and again
            reply.write(20, 25)
            if reply.compare().verdict is Verdict.FASTER:
                n_wrong += 1
                break
    assert n_wrong <= 6


def test_going_back_and_forth_cancels_a_drift():
    reply = MadeReply()
    tps = 30.0
    choices = [TWO, ONE]
    for number in range(12):
        for _ in range(5):
            reply.write(4, tps)
            tps *= 0.99
        reply.change(choices[number % 2], choices[(number + 1) % 2])
    comparison = reply.compare()
    assert comparison.ratio < 1.06
    assert comparison.verdict is not Verdict.FASTER


def test_few_tokens_are_not_compared():
    reply = MadeReply().write(60, 25).change(TWO, ONE).write(LEAST_TOKENS - 1, 12)
    comparison = reply.compare()
    assert comparison.verdict is Verdict.TOO_FEW
    assert comparison.speeds[1].n_tokens < LEAST_TOKENS
    assert comparison.speeds[1].tps == 0


def test_tokens_right_after_a_change_are_left_out():
    reply = MadeReply(noise=0.001).write(60, 20).change(TWO, ONE)
    reply.write(4, 2).write(60, 10)
    slow = reply.compare().speeds[1]
    assert slow.tps == pytest.approx(10, rel=0.01)


def test_moving_the_weights_is_not_a_slow_token():
    huge = TunedChoice(2, 2, weights="huge")
    reply = MadeReply(noise=0.01).write(60, 20).change(TWO, huge, seconds=5.0).write(60, 24)
    comparison = reply.compare()
    assert comparison.speeds[0].tps == pytest.approx(24, rel=0.01)
    assert comparison.ratio == pytest.approx(1.2, rel=0.02)


def test_an_intermediate_choice_with_few_tokens_is_passed_over():
    three = TunedChoice(3, 2, weights="mmap")
    reply = MadeReply().write(60, 30).change(three, TWO).write(10, 25).change(TWO, ONE)
    comparison = reply.write(60, 12).compare()
    assert [speed.choice.decode for speed in comparison.speeds] == [3, 1]


def test_other_programs_are_reported_from_both_sides():
    def others_cores(begin_s, end_s):
        return 1.3 if begin_s < 101 else 0.1

    reply = MadeReply().write(60, 25).change(TWO, ONE).write(60, 12)
    assert reply.compare(others_cores).others_cores == 1.3


def test_the_newest_tokens_of_a_long_reply_count():
    reply = MadeReply().write(1000, 40).write(300, 20).change(TWO, ONE).write(300, 10)
    fast, slow = reply.compare().speeds
    assert fast.tps == pytest.approx(20, rel=0.02)
    assert (fast.n_tokens, slow.n_tokens) <= (MOST_TOKENS, MOST_TOKENS)


def test_guessed_tokens_and_stutters_are_left_out():
    gaps_s = [0.1] * 40
    gaps_s[10:13] = [0.16, 0.0001, 0.0001]  # a step that computed three tokens
    gaps_s[30] = 2.0
    assert steady_gaps(gaps_s) == [0.1] * 36
    assert steady_gaps([]) == []


def test_equal_times_have_no_error():
    mean = mean_time([0.1] * 64)
    assert mean.seconds == pytest.approx(0.1)
    assert mean.half_width_s(0.95) == pytest.approx(0)


def test_the_interval_contains_the_mean_as_often_as_it_says():
    made = random.Random(7)
    n_inside = 0
    for _ in range(300):
        mean = mean_time([made.gauss(1, 0.1) for _ in range(96)])
        n_inside += abs(mean.seconds - 1) <= mean.half_width_s(0.95)
    assert 0.9 <= n_inside / 300 <= 1.0
