from pathlib import Path

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Offset
from textual.pilot import Pilot
from textual.selection import Selection

from app.text.clean_text import screen_text
from app.tui.chat.messages import LinkChosen
from app.tui.themes import meanings
from app.tui.widgets.reply_body import ReplyBody
from tests.app.chat_driver import chatting, shown_source
from tests.app.fake_engine import Script
from tests.programs.interface_bench.reply_text import MARKDOWN


class BodyApp(App[None]):
    CSS = (Path(__file__).parents[3] / "app/tui/chat/screen.tcss").read_text()

    def __init__(self, finished: str | None = None) -> None:
        super().__init__()
        self.finished = finished
        self.links = []

    def compose(self) -> ComposeResult:
        yield ReplyBody(self.finished)

    def get_css_variables(self) -> dict[str, str]:
        variables = super().get_css_variables()
        return {**variables, **meanings(self.current_theme, variables)}

    def on_link_chosen(self, message: LinkChosen) -> None:
        self.links.append(message.address)


def shown(app: App[None]) -> list[str]:
    """Text of the screen, without the spaces at the right."""
    rows = [
        "".join(segment.text for segment in row).rstrip()
        for row in app.screen._compositor.render_strips()
    ]
    while rows and not rows[-1]:
        rows.pop()
    return rows


async def add(pilot: Pilot[None], body: ReplyBody, text: str) -> None:
    """Let text arrive, and wait until it is laid out."""
    body.append(text)
    for _ in range(3):
        await pilot.pause()


STEPS = "".join(
    f"{n}. step\n\n    ```sh\n    - no item {n}\n    1. neither\n    ```\n\n    more of it\n"
    for n in range(10, 60)
)
WHOLE = MARKDOWN + "- item\n\n" * 10 + "Done *well*.\n"


@pytest.mark.parametrize(
    ("text", "size", "n_chars"),
    [(WHOLE, (80, 100), 7), (WHOLE, (31, 140), 333), (STEPS, (60, 500), 101)],
)
async def test_a_reply_grows_as_it_will_look(
    text: str, size: tuple[int, int], n_chars: int
) -> None:
    app = BodyApp()
    async with app.run_test(size=size) as pilot:
        body = app.query_one(ReplyBody)
        for start in range(0, len(text), n_chars):
            body.append(text[start : start + n_chars])
        await pilot.pause()
        assert shown_source(body) == text
        grown = shown(app)
        body.finish()  # it is parsed as a whole
        await pilot.pause()
        assert shown(app) == grown


async def test_a_growing_reply_that_becomes_wider_frees_its_extra_rows() -> None:
    app = BodyApp()
    async with app.run_test(size=(10, 24)) as pilot:
        body = app.query_one(ReplyBody)
        await add(pilot, body, "some words of a reply that takes many rows " * 40)
        for width in (40, 80, 120):
            narrow = body.size.width
            await pilot.resize_terminal(width, 24)
            while body.size.width == narrow:
                await pilot.pause()
            await pilot.pause()
            assert (
                len(body._markdown.rows) <= body.size.height <= len(body._markdown.rows) + 24 // 4
            )


async def test_code_gets_its_colours_when_its_block_ends() -> None:
    app = BodyApp()
    async with app.run_test(size=(60, 24)) as pilot:
        body = app.query_one(ReplyBody)

        def colours() -> set[object]:
            row = next(n for n, row in enumerate(shown(app)) if "def lean" in row)
            return {
                segment.style.color
                for segment in app.screen._compositor.render_strips()[row]
                if segment.style
            }

        await add(pilot, body, "Try\n\n```python\ndef lean(angle):\n    return 1\n")
        assert "python" in shown(app)[2]
        n_before = len(colours())
        await add(pilot, body, "```\n\nand more")
        assert len(colours()) > n_before


LOOSE_ITEM = (
    "{n}. **Item {n}** the first sentence of it, which is long enough to be wrapped to a second "
    "row here.\n\n"
)


@pytest.mark.parametrize(
    ("item", "mark"), [(LOOSE_ITEM, "  {n}. "), (LOOSE_ITEM.replace("{n}.", "-"), "• ")]
)
async def test_items_of_a_long_list_are_in_place_from_the_first_word(item: str, mark: str) -> None:
    app = BodyApp()
    async with app.run_test(size=(60, 140)) as pilot:
        body = app.query_one(ReplyBody)
        await add(pilot, body, "".join(item.format(n=n) for n in range(10, 21)))
        for n in range(21, 27):
            await add(pilot, body, item.format(n=n).rstrip())
            last = next(row for row in shown(app) if f"Item {n} " in row)
            assert last.lstrip().startswith(mark.format(n=n).strip() + " Item"), shown(app)[-6:]
            assert shown(app)[-1].startswith(" " * len(mark.format(n=n).lstrip()))
            await add(pilot, body, "\n\n")


ODD = (
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
    "999999999. item",
    "| a |\n|---|",
    "-\n1.\n#\n>\n",
)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (5, 5)])
async def test_no_text_however_odd_ends_the_application(size: tuple[int, int]) -> None:
    app = BodyApp()
    async with app.run_test(size=size) as pilot:
        await app.query_one(ReplyBody).remove()
        for text in ODD:
            body = ReplyBody()
            await app.mount(body)
            for start in range(0, len(text), 500):
                await add(pilot, body, text[start : start + 500])
            body.finish()
            await pilot.pause()
            assert body.text == text
            assert shown_source(body) == screen_text(text)
            assert app.is_running
            await body.remove()


async def test_a_text_that_the_parser_cannot_take_is_shown_as_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(source: str) -> None:
        raise RecursionError(source)

    monkeypatch.setattr("app.tui.markdown.growing.tree_of", fail)
    app = BodyApp()
    async with app.run_test() as pilot:
        body = app.query_one(ReplyBody)
        await add(pilot, body, "some **bold**")
        await add(pilot, body, " text\nmore")
        assert shown(app) == ["some **bold** text", "more"]
        body.finish()
        await pilot.pause()
        assert shown(app) == ["some **bold** text", "more"]


@pytest.mark.parametrize(
    ("n_screen_rows", "heights_then"),
    [
        (24, [2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14]),
        (48, [4] * 3 + [8] * 4 + [12] * 4 + [16] * 2),
    ],
)
async def test_a_growing_reply_lays_out_only_when_its_room_is_used_up(
    n_screen_rows: int, heights_then: list[int]
) -> None:
    app = BodyApp()
    async with app.run_test(size=(40, n_screen_rows)) as pilot:
        body = app.query_one(ReplyBody)
        heights = []
        layouts = []
        reflow = app.screen._compositor.reflow
        app.screen._compositor.reflow = lambda *given: (layouts.append(1), reflow(*given))[1]
        await add(pilot, body, "- A line\n")
        n_before = body.size.height
        del layouts[:]
        for _ in range(13):
            await add(pilot, body, "- another line\n")
            heights.append(body.size.height)
        assert heights == heights_then
        n_growths = len(set(heights_then)) - 1 + (heights_then[0] > n_before)
        assert len(layouts) <= 2 * n_growths  # Textual lays out twice when a container grows
        assert shown(app) == ["• A line"] + ["• another line"] * 13
        body.finish()
        await pilot.pause()
        assert body.size.height == 14


async def test_scroll_bars_are_lines_and_no_blocks_without_colour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with chatting(Script(replies=[["- a line\n"] * 60])) as driver:
        await driver.ask("hello")
        await driver.shows("┃")
        cells = [
            segment for strip in driver.app.screen._compositor.render_strips() for segment in strip
        ]
        assert all(
            cell.style is None or not cell.style.reverse
            for cell in cells
            if cell.text.strip(" ┃") == ""
        )


async def test_rows_that_stay_are_not_painted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    app = BodyApp()
    async with app.run_test(size=(40, 60)) as pilot:
        body = app.query_one(ReplyBody)
        painted = []
        await add(pilot, body, "# One\n\nTwo\nthree\n\nFour and")
        paint = body._painted
        monkeypatch.setattr(
            body, "_painted", lambda y, selection: (painted.append(y), paint(y, selection))[1]
        )
        await add(pilot, body, " five")
        assert painted == [4]
        assert shown(app)[-1] == "Four and five"


async def test_coloured_code_heeds_a_theme_without_colours() -> None:
    app = BodyApp()
    async with app.run_test(size=(40, 10)) as pilot:
        body = app.query_one(ReplyBody)
        await add(pilot, body, "```python\nx = 1\n")
        assert len({segment.style for segment in body.render_line(1) if segment.text.strip()}) == 1
        await add(pilot, body, "```\n")
        body.finish()
        await pilot.pause()
        assert (
            len({str(segment.style) for segment in body.render_line(1) if segment.text.strip()}) > 1
        )
        app.theme = "ansi-dark"
        await pilot.pause()
        colours = {
            segment.style.color.name
            for segment in body.render_line(1)
            if segment.style and segment.style.color
        }
        assert not any(name.startswith("#") for name in colours)


async def test_what_is_selected_is_the_text_and_not_its_rows() -> None:
    text = "Some words that are too long for one row.\n\n> quoted\n\n- item\n\n```\n  code\n```\n"
    app = BodyApp(text)
    async with app.run_test(size=(20, 20)) as pilot:
        await pilot.pause()
        body = app.query_one(ReplyBody)
        whole, _ = body.get_selection(Selection(None, None))
        assert whole == "Some words that are too long for one row.\n\nquoted\n\n• item\n\n  code"
        part = Selection(Offset(11, 0), Offset(19, 0))
        assert body.get_selection(part)[0] == "that are"
        app.screen.selections = {body: part}
        await pilot.pause()
        usual = body.visual_style.rich_style.bgcolor
        rows = [body.render_line(y) for y in range(3)]
        assert (
            "".join(s.text for row in rows for s in row if s.style.bgcolor != usual) == "that are"
        )


async def test_a_click_on_a_link_tells_where_it_leads() -> None:
    app = BodyApp("See [this](https://example.org/it's).")
    async with app.run_test(size=(40, 10)) as pilot:
        await pilot.pause()
        await pilot.click(ReplyBody, offset=(5, 0))
        await pilot.pause()
        assert app.links == ["https://example.org/it's"]
