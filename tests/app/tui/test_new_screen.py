"""A new screen needs only its file, its styles and a line in the table of actions."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import pytest
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import Screen
from textual.widgets import Static

import app.tui.app
from app.tui.actions import ACTIONS, Action, action_table
from app.tui.app import JalopyApp
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from tests.app import chat_driver
from tests.app.chat_driver import Driver, chatting

LINE = Action("clock", "Show the time", "app", "f10", slash="clock", shows="clock")


@pytest.fixture(autouse=True)
def _new_screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for action_id, action in action_table(LINE).items():
        monkeypatch.setitem(ACTIONS, action_id, action)

    (tmp_path / "clock.tcss").write_text("ClockScreen { padding: 1; }\n")

    class ClockScreen(Screen[None]):
        CSS_PATH = str(tmp_path / "clock.tcss")
        BINDINGS: ClassVar[list[BindingType]] = bindings("clock")

        def __init__(self, chat: ChatScreen) -> None:
            super().__init__()
            self._keymap = chat.core.keymap

        def compose(self) -> ComposeResult:
            yield Static(f"ten to three, {self._keymap.hint('clock.leave', 'back')}")

    module = ModuleType("app.tui.screens.clock")
    module.ClockScreen = ClockScreen  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    class App(JalopyApp, inherit_bindings=False):  # whose keys were made before the line was there
        CSS_PATH = Path(app.tui.app.__file__).with_name("app.tcss")
        BINDINGS: ClassVar[list[BindingType]] = bindings("app")

    monkeypatch.setattr(chat_driver, "JalopyApp", App)


async def _is_shown_and_left(driver: Driver, key: str) -> None:
    await driver.shows("ten to three, Esc back")
    await driver.pilot.press(key)
    await driver.until(lambda: driver.app.screen is driver.chat, "back in the chat")


async def test_a_new_screen_opens_and_closes_by_its_keys() -> None:
    async with chatting() as driver:
        await driver.pilot.press("f10")
        await _is_shown_and_left(driver, "escape")
        await driver.say("/clock")
        await _is_shown_and_left(driver, "q")
        await driver.pilot.press("f10")
        await _is_shown_and_left(driver, "f10")


async def test_help_and_palette_list_a_new_screen() -> None:
    async with chatting(size=(100, 60)) as driver:
        await driver.pilot.press("f1")
        await driver.shows("Show the time")
        await driver.pilot.press("escape")
        commands = {
            command.title: command for command in driver.app.get_system_commands(driver.chat)
        }
        await commands["Show the time"].callback()
        await _is_shown_and_left(driver, "escape")
