"""What the chat looks like, size by size and terminal by terminal."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from rich.color import ColorType

from app.screens.chat import ChatScreen
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script
from tests.app.picture import check_picture, colours_of, settled

FIRST = """# Old laptops

Mostly they do not get **slow**: the programs got heavier.

- browsers use several gigabytes
- spinning disks are busy with `small` files

```sh
free -m
```
"""
SECOND = "<think>\nThe user wants to clean it. Power first.\n</think>\n\nPower it off and take out the battery first."
SIZES = [(80, 24), (60, 20), (200, 60), (40, 15), (100, 30)]


@pytest.fixture(autouse=True)
def process_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChatScreen, "_measure_memory", lambda screen: setattr(screen, "_rss_bytes", 118 << 20))


def tokens(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def script() -> Script:
    return Script(replies=[tokens(FIRST), tokens(SECOND)], n_ctx=256)


@asynccontextmanager
async def conversation(size: tuple[int, int] = (80, 24), **settings: object) -> AsyncIterator[Driver]:
    """Two turns, the second one with thinking."""
    async with chatting(script(), size, system_prompt="Be brief.", **settings) as driver:
        await driver.ask("Why do old laptops get slow?")
        await driver.ask("And how do I clean it?")
        yield driver


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_conversation(size: tuple[int, int]) -> None:
    async with conversation(size) as driver:
        check_picture(f"chat-{size[0]}x{size[1]}", await settled(driver))


@pytest.mark.parametrize("size", [(80, 24), (60, 20)], ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_prompt_that_is_being_read(size: tuple[int, int]) -> None:
    slow = Script(prefill_gate=Gate(), n_ctx=2000, seconds_per_prompt_token=0.5)
    async with chatting(slow, size) as driver:
        await driver.say("word " * 400)
        slow.prefill_gate.allow(150)
        await driver.until(lambda: "150" in driver.screen_text())
        check_picture(f"reading-{size[0]}x{size[1]}", await settled(driver))


async def test_thinking_as_it_comes() -> None:
    thoughtful = Script(replies=[tokens("<think>\n" + "First this. # Then that.\n" * 40)], token_gate=Gate())
    async with chatting(thoughtful) as driver:
        await driver.say("Why?")
        thoughtful.token_gate.allow(120)
        await driver.until(thoughtful.token_gate.waiting.is_set)
        check_picture("thinking-80x24", await settled(driver))


async def test_a_reply_that_was_stopped_has_the_focus_and_names_its_keys() -> None:
    gated = Script(replies=[tokens(FIRST)], token_gate=Gate())
    async with chatting(gated) as driver:
        await driver.say("Why do old laptops get slow?")
        gated.token_gate.allow(12)
        await driver.until(gated.token_gate.waiting.is_set)
        await driver.pilot.press("escape")
        await driver.until(lambda: ">model" in driver.screen_text())
        check_picture("stopped-80x24", await settled(driver))


async def test_a_message_that_is_being_edited() -> None:
    async with conversation() as driver:
        await driver.say("/edit 1")
        await driver.until(lambda: "cached tokens stay" in driver.screen_text())
        check_picture("editing-80x24", await settled(driver))


async def test_a_context_that_is_nearly_full() -> None:
    async with chatting(Script(replies=[[" word"] * 230], n_ctx=256), (80, 24)) as driver:
        await driver.ask("Talk.")
        await driver.until(lambda: "nearly full" in driver.screen_text())
        check_picture("nearly-full-80x24", await settled(driver))


async def test_the_linux_console_shows_only_what_its_font_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "linux")
    async with conversation() as driver:
        shown = await settled(driver)
        check_picture("console-80x24", shown)
        shown.replace("•", "").encode("cp437")  # the font has the bullet too, where the encoding has a bell
        assert colours_of(driver) <= {ColorType.DEFAULT, ColorType.STANDARD}


async def test_sixteen_colours_are_enough() -> None:
    async with conversation(theme="jalopy-16") as driver:
        shown = await settled(driver)
        assert colours_of(driver) <= {ColorType.DEFAULT, ColorType.STANDARD}
    async with conversation() as driver:
        assert shown == await settled(driver)


async def test_without_colour_the_same_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with conversation() as driver:
        check_picture("chat-80x24", await settled(driver))


@pytest.mark.parametrize("size", [(20, 6), (10, 3), (3, 2), (1, 1)], ids=str)
async def test_no_size_ends_the_chat(size: tuple[int, int]) -> None:
    async with conversation(size) as driver:
        for keys in (("ctrl+up",), ("t",), ("e",), ("escape",), ("ctrl+up", "ctrl+up", "escape")):
            await driver.pilot.press(*keys)
        await driver.pilot.resize_terminal(80, 24)
        await driver.until(lambda: "Power it off" in driver.screen_text())
