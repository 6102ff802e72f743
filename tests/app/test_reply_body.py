import pytest
from textual.app import App, ComposeResult

from app.widgets.growing_text import GrowingText
from app.widgets.reply_body import ReplyBody
from app.widgets.reply_markdown import ReplyMarkdown, reply_parser


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


async def test_what_is_open_is_shown_as_it_came_and_what_is_complete_as_markdown():
    app = BodyApp()
    async with app.run_test() as pilot:
        body = app.query_one(ReplyBody)
        markdown = body.query_one(ReplyMarkdown)
        body.append("# Title\n\nSome **bold** text.\n\nAnd *more")
        while body.shown_source != body.text:
            await pilot.pause()
        assert markdown.source == "# Title\n\nSome **bold** text.\n\n"
        body.append("* of it\n\n")
        while markdown.source != body.text:
            await pilot.pause()


async def test_text_that_only_lengthens_its_line_lays_nothing_out_again():
    app = BodyApp()
    async with app.run_test() as pilot:
        body = app.query_one(ReplyBody)
        body.append("Some text")
        while not body.query(GrowingText):
            await pilot.pause()
        text = body.query_one(GrowingText)
        layouts = []
        update = text.update
        text.update = lambda content, *, layout=True: (layouts.append(layout), update(content, layout=layout))[1]
        for piece in (" and", " more", " of", " it", " x" * 40):
            body.append(piece)
            while body.shown_source != body.text:
                await pilot.pause()
            await pilot.pause()
        assert layouts == [False, False, False, False, True]
        assert text.size.height == 2
