import pytest

from app.widgets.complete_blocks import FIRST_LOOK_CHARS, complete_chars, ready_chars


@pytest.mark.parametrize(
    ("complete", "rest"),
    [
        ("", "Some text and more."),
        ("Some text.\n\n", "A new paragraph"),
        ("One.\n\nTwo.\n\n", ""),
        ("# Title\n", "text"),
        ("", "# Tit"),
        ("", "```python\nx = 1\n\ny = 2\n"),
        ("```python\nx = 1\n```\n", "then"),
        ("", "````\n```\n"),
        ("~~~\nx\n~~~\n", ""),
        ("", "- one\n- two\n\n- three\n"),
        ("", "1. one\n\n   more of one\n"),
        ("- one\n- two\n\n", "Text."),
        ("", "- one\n  ```\n  code\n  ```\n"),
        ("", "| a | b |\n|---|---|\n| 1 | 2 |\n"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n\n", "x"),
        ("", ""),
    ],
)
def test_the_end_of_the_last_complete_block_is_seen_by_its_kind(complete: str, rest: str) -> None:
    assert complete_chars(complete + rest) == len(complete)


def test_complete_blocks_are_ready_and_open_ones_wait() -> None:
    assert ready_chars("", "One.\n\nTwo") == 6
    assert ready_chars("", "Two") == 0
    assert ready_chars("```\nx\n", "y\n```\nthen") == 6


def test_an_open_block_is_ready_when_it_is_long_and_whenever_it_has_doubled() -> None:
    lines = "x = 1\n" * (FIRST_LOOK_CHARS // 6 + 1)
    assert ready_chars("", "```\n" + lines + "y") == len("```\n" + lines)
    assert ready_chars("```\n" + lines * 3, lines) == 0
    assert ready_chars("```\n" + lines * 3, lines * 4) == len(lines) * 4
    assert ready_chars("", "one paragraph that is a single line " * 40) == 0
