import pytest
from textual.app import App, ComposeResult

from app.widgets.reply_body import ReplyBody
from app.widgets.reply_markdown import PLAIN_TAIL_CHARS, ends_block, reply_parser, shows_at_once

LONG = "x" * PLAIN_TAIL_CHARS


@pytest.mark.parametrize(
    ("open_source", "tail", "ends"),
    [
        ("```python\nx = 1\n", "y = 2\n", False),
        ("```python\nx = 1\n", "y = 2\n\nz = 3\n", False),
        ("```python\nx = 1\n", "y = 2\n```\n", True),
        ("~~~\nx\n", "~~~", True),
        ("- one\n", "- two\n\n- three\n", False),
        ("1. one\n", "\n   more of one\n", False),
        ("- one\n", "- two\n\nText.", True),
        ("Some text", " and more.", False),
        ("Some text\n", "\nA new paragraph", True),
    ],
)
def test_the_end_of_a_block_is_seen_by_its_kind(open_source, tail, ends):
    assert ends_block(open_source, tail) is ends


def test_a_short_block_is_parsed_at_every_append():
    assert shows_at_once("some text", " more")


def test_a_long_open_block_is_parsed_again_only_when_it_ends_or_has_doubled():
    assert not shows_at_once(LONG, " more")
    assert shows_at_once(LONG, "\n\nmore")
    assert shows_at_once(LONG, LONG)


def test_html_is_text_and_bare_words_are_no_links():
    kinds = {child.type for token in reply_parser().parse("<b>x</b> www.example.org") for child in token.children or []}
    assert kinds == {"text"}


class BodyApp(App[None]):
    def compose(self) -> ComposeResult:
        yield ReplyBody()


async def test_a_streamed_reply_ends_like_one_that_came_at_once():
    text = "# T\n\n" + "- item\n\n" * 40 + "```py\n" + "x = 1\n" * 900 + "```\n\nDone *well*.\n\n" + "word " * 1500
    app = BodyApp()
    async with app.run_test() as pilot:
        body = app.query_one(ReplyBody)
        for start in range(0, len(text), 333):
            body.append(text[start : start + 333])
            await pilot.pause()
            assert body.shown_source == body.text
        body.finish()
        while not body.is_final or body.shown_source != text:
            await pilot.pause()
        assert body.text == text


@pytest.mark.parametrize(
    "text",
    [
        "> " * 500 + "deep",
        "- " * 200 + "deep",
        "|" * 2000 + "\n" + "|-" * 1000,
        "```\x00\n```",
        "``` {.py [red]\ncode\n```",
        "[x](javascript:alert(1)) ![i](file:///etc/passwd) [y]('bad')",
        "[@click=app.quit]x[/]\n===\n",
        "# " + "[" * 3000,
        "*" * 3000,
        "1" * 400 + ". item",
    ],
)
async def test_no_text_however_odd_ends_the_application(text):
    app = BodyApp()
    async with app.run_test() as pilot:
        body = app.query_one(ReplyBody)
        for start in range(0, len(text), 500):
            body.append(text[start : start + 500])
            await pilot.pause()
        body.finish()
        while not body.is_final:
            await pilot.pause()
        await pilot.pause()
        assert body.text == text
        assert app.is_running
