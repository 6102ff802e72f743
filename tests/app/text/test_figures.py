from dataclasses import replace

import pytest

from app.conversations import reply_lines as lines
from app.conversations.conversation import Ending, ReplyFigures
from app.reply.thinking import Thinking
from app.text import figures
from app.text.guesses import GuessFigures


@pytest.mark.parametrize(
    ("tokens_per_s", "written"),
    [(0.5, "0.50"), (2.94, "2.9"), (9.96, "10.0"), (99.96, "100"), (512.3, "512")],
)
def test_only_low_rates_have_decimals(tokens_per_s, written):
    assert figures.rate(tokens_per_s) == written


@pytest.mark.parametrize(
    ("n_bytes", "written"),
    [(0, "0B"), (512, "512B"), (118 << 20, "118M"), (4.2 * 2**30, "4.2G"), (1023.9, "1.0K")],
)
def test_sizes_are_short(n_bytes, written):
    assert figures.size(n_bytes) == written


@pytest.mark.parametrize(
    ("s", "written"), [(0.2, "1 s"), (59.4, "59 s"), (86, "1 min 26 s"), (7500, "2 h 5 min")]
)
def test_estimates_are_whole_seconds(s, written):
    assert figures.whole_seconds(s) == written


def test_a_measured_duration_carries_from_seconds_to_minutes():
    assert [figures.seconds(s) for s in (0.843, 4.06, 59.97)] == ["0.84 s", "4.1 s", "1 min 0 s"]


def test_a_bar_never_exceeds_its_width():
    assert figures.bar(7, 14, 14) == "█" * 7 + "░" * 7
    assert figures.bar(20, 14, 4) == "████"
    assert figures.bar(1, 0, 3) == "░░░"


def test_the_footer_has_tokens_and_speed_without_details():
    measured = ReplyFigures(214, 2.1, 5.1, prompt_tokens=12, reused_tokens=31)
    footer = "214 tokens · 5.1 tok/s · first word after 2.1 s"
    assert lines.reply_footer(measured, Ending.COMPLETE) == footer
    assert lines.reply_details(measured) == "12 read · 31 cached"
    assert lines.whole_footer(measured, Ending.COMPLETE) == f"{footer} · 12 read · 31 cached"
    assert lines.whole_footer(None, Ending.STOPPED) == "stopped"
    assert lines.shortened(footer, 47) == footer
    assert lines.shortened(f"{footer} · stopped", 47) == "214 tokens · 5.1 tok/s · stopped"
    assert lines.shortened(f"{footer} · stopped", 24) == "214 tokens · stopped"


def test_guessed_tokens_are_in_the_footer_and_in_the_reply():
    measured = ReplyFigures(1214, 2.1, 5.1, prompt_tokens=12, reused_tokens=31, guessed_tokens=312)
    footer = lines.reply_footer(measured, Ending.COMPLETE)
    assert footer == "1,214 tokens (312 guessed) · 5.1 tok/s · first word after 2.1 s"
    assert measured.continued_by(measured).guessed_tokens == 624


def test_guesses_are_told_by_kind_with_what_they_saved():
    guesses = (GuessFigures("conversation", 60, 45), GuessFigures("predictor", 8, 5))
    measured = ReplyFigures(
        1214, 2.1, 5.1, 12, 0, guessed_tokens=50, guesses=guesses, guess_saved_s=3.21
    )
    footer = lines.reply_footer(measured, Ending.COMPLETE)
    assert footer.startswith("1,214 tokens (50 of 68 guesses right) · 5.1 tok/s")
    assert len(footer) <= 80
    kinds = "45 of 60 from this conversation, 5 of 8 from multi-token prediction"
    assert lines.reply_details(measured) == f"12 read · guessed {kinds} · saved 3.2 s"
    whole = lines.whole_footer(measured, Ending.COMPLETE)
    assert lines.shortened(whole, len(whole) - 1) == f"{footer} · 12 read · saved 3.2 s"
    assert lines.shortened(whole, len(footer) + len(" · 12 read")) == f"{footer} · 12 read"
    both = measured.continued_by(replace(measured, guess_saved_s=None))
    assert both.guesses[0] == GuessFigures("conversation", 120, 90)
    assert both.guess_saved_s == 3.21
    cost = replace(measured, guess_saved_s=-0.5)
    assert lines.reply_details(cost).endswith(" · cost 0.50 s")


def test_a_long_time_saved_by_a_saved_state_is_shown():
    assert figures.back(1670, 0.09, 26.0) == "1,670 tokens restored in 0.09 s instead of about 26 s"
    assert figures.back(325, 0.01, 1.0) == "325 tokens restored in 0.01 s"
    assert figures.back(24, 0.004, None) == "24 tokens restored at once"
    assert figures.back(325, 0.01, None) == "325 tokens restored in 0.01 s"


def test_thinking_is_summarised_in_one_line():
    assert (
        lines.thinking_summary(Thinking("x", 148, 12.3, True)) == "thought for 12.3 s · 148 tokens"
    )
    assert (
        lines.thinking_summary(Thinking("x", 1, 0.5))
        == "thought for 0.50 s · 1 token · not finished"
    )


def test_the_footer_of_one_stopped_token_has_no_speed():
    measured = ReplyFigures(
        tokens=1, first_token_s=2.1, decode_tps=None, prompt_tokens=12, reused_tokens=0
    )
    assert (
        lines.whole_footer(measured, Ending.STOPPED)
        == "1 token · first word after 2.1 s · stopped · 12 read"
    )


def test_a_full_context_suggests_a_larger_one():
    assert "a larger context_size holds more." in figures.context_nearly_full(
        230, 256, may_grow=True
    )
    assert figures.context_nearly_full(230, 256, may_grow=False).endswith(
        "/new starts a new conversation."
    )
