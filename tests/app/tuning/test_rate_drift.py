"""Replies against what was measured when threads were tuned."""

import dataclasses

import pytest

from app.program.state import Measured, TunedChoice
from app.tuning.rate_drift import REPLIES, RateDrift, ReplyRate, is_in_use

CHOICE = TunedChoice(2, 4, False, "mmap", "f16")
WEIGHTS, POSITION = 1_000_000, 100.0


def drift(tps: float | None = 5.0) -> RateDrift:
    found = RateDrift(WEIGHTS, POSITION)
    found.expect(CHOICE, Measured("k", False, tps, 0))
    return found


def notes(watch: RateDrift, *rates: float, choice: TunedChoice = CHOICE, tokens: int = 50) -> list[str]:
    return [watch.note(ReplyRate(choice, tps, tokens, 0)) for tps in rates]


def test_several_much_slower_replies_are_a_drift() -> None:
    found = notes(drift(), *[3.0] * REPLIES)
    assert found[:-1] == [""] * (REPLIES - 1)
    assert found[-1] == "replies are 40 % slower than when threads were tuned (median of 5)"


def test_much_faster_ones_are_one_too() -> None:
    assert "60 % faster" in notes(drift(), *[8.0] * REPLIES)[-1]


def test_the_median_decides_so_that_single_slow_replies_say_nothing() -> None:
    assert set(notes(drift(), 5.0, 1.0, 5.0, 1.0, 5.0, 5.1, 1.0, 4.9)) == {""}


def test_a_fifth_slower_is_not_far_enough() -> None:
    assert set(notes(drift(), *[4.0] * 10)) == {""}


def test_a_long_context_is_no_drift() -> None:
    watch = drift()
    twice = int(WEIGHTS / POSITION)  # as many bytes of keys and values as of weights
    assert {watch.note(ReplyRate(CHOICE, 2.5, 50, twice)) for _ in range(10)} == {""}
    assert "slower" in [watch.note(ReplyRate(CHOICE, 1.5, 50, twice)) for _ in range(10)][-1]


def test_short_replies_and_other_settings_do_not_count() -> None:
    assert set(notes(drift(), *[1.0] * 10, tokens=8)) == {""}
    for other in (
        {"decode": 1}, {"prefill": 1}, {"pinned": True}, {"weights": "huge"}, {"kv_type": "q8_0"}
    ):  # fmt: skip
        assert set(notes(drift(), *[1.0] * 10, choice=dataclasses.replace(CHOICE, **other))) == {""}


@pytest.mark.parametrize("measured", [None, Measured("k")])
def test_without_a_measured_rate_nothing_is_said(measured: Measured | None) -> None:
    watch = RateDrift(WEIGHTS, POSITION)
    watch.expect(CHOICE, measured)
    assert set(notes(watch, *[1.0] * 10)) == {""}


def test_a_new_choice_begins_anew() -> None:
    watch = drift()
    notes(watch, *[3.0] * (REPLIES - 1))
    watch.expect(CHOICE, Measured("k", False, 3.0, 0))
    assert set(notes(watch, *[3.0] * REPLIES)) == {""}


def test_what_was_not_found_out_does_not_tell_choices_apart() -> None:
    assert is_in_use(TunedChoice(2, 4), CHOICE)
    assert not is_in_use(TunedChoice(2, 4, weights="huge"), CHOICE)
