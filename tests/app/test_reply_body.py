from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.pilot import Pilot

from app.widgets.growing_text import GrowingText
from app.widgets.reply_body import ReplyBody
from app.widgets.reply_markdown import ReplyMarkdown, reply_parser


def test_html_is_text_and_bare_words_are_no_links():
    kinds = {child.type for token in reply_parser().parse("<b>x</b> www.example.org") for child in token.children or []}
    assert kinds == {"text"}


class BodyApp(App[None]):
    CSS = (Path(__file__).parents[2] / "app/screens/chat.tcss").read_text()

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


async def test_what_is_complete_becomes_markdown_when_the_room_is_used_up_and_the_open_rest_stays_as_it_came():
    app = BodyApp()
    async with app.run_test(size=(40, 30)) as pilot:
        body = app.query_one(ReplyBody)
        markdown = body.query_one(ReplyMarkdown)
        await shown(pilot, body, "# Title\n\nSome **bold** text.\n\nAnd *more")
        assert markdown.source == ""
        await shown(pilot, body, "* of\nit\n\nand so on\n- a\n- b")
        assert markdown.source == "# Title\n\nSome **bold** text.\n\nAnd *more* of\nit\n\n"
        assert body.shown_source == body.text


async def test_a_growing_reply_lays_the_screen_out_only_when_its_room_is_used_up():
    app = BodyApp()
    async with app.run_test(size=(40, 30)) as pilot:
        body, heights = app.query_one(ReplyBody), []
        layouts, reflow = [], app.screen._compositor.reflow
        app.screen._compositor.reflow = lambda *given: (layouts.append(1), reflow(*given))[1]
        await shown(pilot, body, "A line\n")
        del layouts[:]
        for _ in range(12):
            await shown(pilot, body, "another line\n")
            heights.append(body.size.height)
        assert heights == [6] * 4 + [12] * 6 + [18] * 2
        assert 0 < len(layouts) <= 4
        assert body.query(GrowingText).last().render().plain.endswith("another line\n")


async def test_all_of_a_growing_reply_has_its_rows_and_the_finished_one_no_more_than_it_needs():
    app = BodyApp()
    async with app.run_test(size=(40, 60)) as pilot:
        body = app.query_one(ReplyBody)
        for paragraph in range(6):
            await shown(pilot, body, f"# Title {paragraph}\n\n" + "word " * 30 + "\n\n- item\n- item\n\n")
            lowest = max(widget.region.bottom for widget in body.query("MarkdownBlock, PlainTail > GrowingText"))
            assert lowest <= body.region.bottom
        body.finish()
        while not body.is_final:
            await pilot.pause()
        await pilot.pause()
        blocks = body.query("MarkdownBlock")
        assert body.size.height <= max(block.region.bottom for block in blocks) + 1


async def shown(pilot: Pilot[None], body: ReplyBody, text: str) -> None:
    """Let text arrive, and wait until it is laid out."""
    body.append(text)
    while body.shown_source != body.text:
        await pilot.pause()
    for _ in range(3):
        await pilot.pause()
