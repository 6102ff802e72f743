import pytest

from app.tui.markdown.growing import complete_chars


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
