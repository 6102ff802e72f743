"""Common behaviour of list screens, tested with a list of words."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import BindingType

from app.tui.actions import ACTIONS
from app.tui.bindings import bindings
from app.tui.chat.draft import Draft
from app.tui.drawing.lines import Line, line
from app.tui.keymap import Keymap
from app.tui.screens.help import HelpScreen
from app.tui.screens.list_screen import ListScreen
from app.tui.screens.palette import Palette
from tests.app.chat_driver import Driver, chatting

WORDS = ("apple", "banana", "cherry")


class Words(ListScreen[str]):
    """List screen that finds another word with each poll."""

    TITLE = "Words"
    SCOPE = "conversations"
    BINDINGS: ClassVar[list[BindingType]] = bindings(SCOPE)
    found: tuple[str, ...] = ()
    n_looks = n_opened = 0
    opened = ""

    def poll(self) -> bool:
        self.n_looks += 1
        self.found = WORDS[: self.n_looks]
        return self.found != WORDS

    def items(self) -> tuple[str, ...]:
        return tuple(word for word in self.found if self.filter_text in word)

    def heading_line(self, columns: int) -> str:
        return "word"

    def row_line(self, item: str, columns: int) -> Line:
        return line(f"{item} in {columns}")

    def details(self, item: str, columns: int) -> tuple[str, list[Line]]:
        return item, [line(f"{item} has {len(item)} letters")]

    def state_line(self) -> str:
        return f"{len(self.found)} found"

    def foot_line(self) -> str:
        return self.message

    def key_words(self, item: str | None) -> dict[str, str]:
        return {"open": f"opens {item}", "leave": "back"}

    def action_open(self) -> None:
        self.n_opened += 1
        self.opened = self.highlighted() or ""
        self.app.push_screen(HelpScreen([], "Esc"))


async def listed(driver: Driver) -> Words:
    words = Words(Keymap())
    await driver.app.push_screen(words)
    await driver.until(lambda: words.found == WORDS, "all words are found")
    await driver.until(lambda: "cherry in 74" in driver.screen_text(), "they are shown")
    return words


async def test_rows_appear_as_found_and_then_polling_stops() -> None:
    async with chatting() as driver:
        words = await listed(driver)
        await driver.shows("apple has 5 letters")
        assert words._timer is not None
        await driver.until(lambda: not words._timer._active.is_set(), "the timer rests")
        assert words.n_looks == 3


class StartingWords(Words):
    """List of words whose cursor begins on the last one."""

    def is_start(self, item: str) -> bool:
        return item == "cherry"


async def test_the_cursor_starts_where_the_list_says_until_moved() -> None:
    async with chatting() as driver:
        words = StartingWords(Keymap())
        await driver.app.push_screen(words)
        await driver.until(lambda: words.highlighted() == "cherry", "as soon as it is found")
        await driver.type("an")
        await driver.until(lambda: words.highlighted() == "banana", "the only row that matches")
        await driver.pilot.press("backspace", "backspace")
        await driver.until(lambda: words.highlighted() == "cherry")
        await driver.pilot.press("up")
        await driver.until(lambda: words.highlighted() == "banana")
        words.restart_search()
        words._lines = ()
        words.show()
        assert words.highlighted() == "banana", "the user has moved it"


async def test_typing_filters_and_the_cursor_keeps_its_row() -> None:
    async with chatting() as driver:
        words = await listed(driver)
        await driver.pilot.press("down", "down")
        await driver.until(lambda: words.highlighted() == "cherry")
        words.message = "something"
        await driver.type("rr")
        await driver.until(
            lambda: words.items() == ("cherry",) and "apple" not in driver.screen_text()
        )
        assert words.message == ""
        await driver.pilot.press("backspace", "backspace")
        await driver.until(lambda: "apple in" in driver.screen_text())
        assert words.highlighted() == "cherry"
        await driver.shows("opens cherry")
        await driver.type("zz")
        await driver.until(lambda: not words._items)
        assert words.highlighted() is None
        await driver.pilot.press("escape")  # clears what is typed first
        await driver.until(lambda: words.filter_text == "" and words._items)
        await driver.pilot.press("end", "enter")
        assert words.opened == "cherry"


async def test_paging_works_without_visible_rows() -> None:
    async with chatting() as driver:
        words = await listed(driver)
        for size in ((1, 1), (80, 1), (1, 24), (3, 2)):
            await driver.pilot.resize_terminal(*size)
            await driver.pilot.press("pagedown", "pageup", "pageup")
        await driver.pilot.resize_terminal(80, 24)
        await driver.shows("cherry in 74")
        await driver.pilot.press("pagedown")
        await driver.until(lambda: words.highlighted() == "cherry")


async def test_pasted_text_filters_like_typed_text() -> None:
    async with chatting() as driver:
        words = await listed(driver)
        await driver.type("an")
        driver.app.post_message(events.Paste(" an␛[31m\n" + "x" * 100_000))
        await driver.until(lambda: len(words.filter_text) > 2)
        assert words.filter_text.startswith("anan␛[31m xxx")
        assert len(words.filter_text) == 200
        await driver.pilot.press("escape")
        driver.app.post_message(events.Paste("\tcherry\n"))
        await driver.until(lambda: words.items() == ("cherry",), "the list is narrowed")


async def test_enter_pressed_twice_opens_once() -> None:
    async with chatting() as driver:
        words = await listed(driver)
        for _ in range(2):  # both are on their way before the first one is heeded
            driver.app.post_message(events.Key("enter", "\r"))
        await driver.until(lambda: words.n_opened, "it is opened")
        await driver.pilot.pause()
        await driver.pilot.pause()
        assert words.n_opened == 1


async def test_a_low_screen_shows_the_answer_to_a_key() -> None:
    async with chatting(size=(80, 10)) as driver:
        words = await listed(driver)
        words.message = "cannot be opened"
        words.show()
        await driver.until(lambda: "cannot be opened" in driver.screen_text(), "the answer")
        await driver.type("a")
        await driver.until(lambda: "cannot be opened" not in driver.screen_text(), "it is gone")


async def test_a_key_pressed_many_times_leaves_one_screen() -> None:
    async with chatting() as driver:
        for opening in (
            driver.app.action_help,
            driver.app.action_theme,
            driver.app.action_command_palette,
        ):
            for key in ("escape", "enter"):
                opening()
                await driver.until(
                    lambda: driver.app.screen is not driver.chat and driver.app.screen.focused
                )
                await driver.pilot.pause()
                screen = driver.app.screen
                for _ in range(6):  # all are on their way before the first one is heeded
                    driver.app.post_message(events.Key(key, "\r" if key == "enter" else None))
                await driver.until(
                    lambda screen=screen: driver.app.screen is not screen, "it is left"
                )
                await driver.pilot.pause()
                assert driver.app.crash_line is None
                await driver.pilot.press("escape")
                await driver.until(lambda: driver.app.screen is driver.chat)
        # The palette is opened again while it is left.
        driver.app.action_command_palette()
        left = driver.app.screen
        assert isinstance(left, Palette)
        left.dismiss()  # goes when its messages are heeded
        driver.app.action_command_palette()
        await driver.until(
            lambda: isinstance(driver.app.screen, Palette) and driver.app.screen is not left
        )
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)


async def test_every_action_of_the_palette_works() -> None:
    async with chatting() as driver:
        needing = [
            action
            for action in ACTIONS.values()
            if action.scope == "chat" and action.needs_argument
        ]
        assert {action.command for action in needing} >= {"read", "title"}
        commands = {
            command.title: command for command in driver.app.get_system_commands(driver.chat)
        }
        for action in needing:
            driver.prompt.show_text("a draft")
            commands[action.title].callback()
            assert driver.prompt.text == f"/{action.command} "
            assert driver.prompt.past.older(driver.prompt.draft) == Draft("a draft")
