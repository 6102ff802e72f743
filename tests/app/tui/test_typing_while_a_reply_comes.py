"""A key is painted at once, and what a reply brings is laid out after it: by count, with a scripted
clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import patch

from app.backend.status import Activity
from app.tui.chat.events import DRAIN_PERIOD_S, EngineFeed
from app.tui.screens.performance import PerformanceScreen
from app.tui.speed.watch import TYPING_PAUSE_S, TypingRhythm
from app.tui.textual_hacks import ThriftyCompositor
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script

_BEFORE_THE_PAUSE_S = 0.9 * TYPING_PAUSE_S


def test_no_one_types_before_the_first_key_and_after_a_pause() -> None:
    rhythm = TypingRhythm()
    assert not rhythm.is_typing(0.0)
    rhythm.set_prompt_text("a", 10.0)
    assert rhythm.is_typing(10.0 + _BEFORE_THE_PAUSE_S)
    assert not rhythm.is_typing(10.0 + TYPING_PAUSE_S)
    rhythm.set_prompt_text("", 20.0)
    assert not rhythm.is_typing(20.0), "what was sent waits for no next key"


@asynccontextmanager
async def writing() -> AsyncIterator[tuple[Driver, list[str]]]:
    """A reply that is being written, at a standstill; and what happened: "painted", "drained"."""
    script = Script(replies=[["word "] * 50], token_gate=Gate(), seconds_per_token=0.001)
    happened = []
    render = ThriftyCompositor.render_update
    show = EngineFeed._show_events

    def painted(compositor: ThriftyCompositor, *given: object, **options: object) -> object:
        update = render(compositor, *given, **options)  # type: ignore[arg-type]
        happened.extend(["painted"] if update is not None else [])
        return update

    def drained(flow: EngineFeed, is_writing_on: bool) -> None:
        happened.append("drained")
        show(flow, is_writing_on)

    with (
        patch.object(ThriftyCompositor, "render_update", painted),
        patch.object(EngineFeed, "_show_events", drained),
    ):
        async with chatting(script) as driver:
            await driver.say("hello")
            script.token_gate.allow(5)
            await driver.until(lambda: "word word" in driver.screen_text())
            await driver.until(lambda: driver.chat.feed._shown_status.activity is Activity.WRITING)
            yield driver, happened


async def press(driver: Driver, letter: str) -> None:
    text = driver.prompt.text + letter
    await driver.pilot.press(letter)
    await driver.until(lambda: f"│ {text}" in driver.screen_text())


async def test_a_key_is_painted_just_before_new_text_of_the_reply() -> None:
    async with writing() as (driver, happened):
        driver.script.clock.advance(1.0)
        await press(driver, "a")
        await driver.until(lambda: driver.chat.feed._rhythm.is_typing(driver.script.clock()))
        for letter in "bcd":
            driver.script.clock.advance(_BEFORE_THE_PAUSE_S)
            happened.clear()
            await press(driver, letter)
            await driver.until(lambda: "drained" in happened)
            assert happened.index("painted") < happened.index("drained")
            assert happened.count("drained") == 1


async def test_the_clock_draws_only_in_a_pause_of_the_typing() -> None:
    async with writing() as (driver, happened):
        driver.script.clock.advance(1.0)
        await press(driver, "a")
        await driver.until(lambda: "drained" in happened)
        await driver.pilot.pause()
        happened.clear()
        for _ in range(20):
            driver.chat.feed.drain()
        assert "drained" not in happened
        driver.script.clock.advance(TYPING_PAUSE_S)
        for _ in range(4):
            driver.chat.feed.drain()
        assert "drained" in happened


async def test_quick_keys_draw_the_reply_no_more_often_than_the_clock() -> None:
    async with writing() as (driver, happened):
        driver.script.clock.advance(1.0)
        await press(driver, "a")
        await driver.pilot.pause()
        happened.clear()
        for letter in "bcdefgh":
            driver.script.clock.advance(DRAIN_PERIOD_S / 10)
            await press(driver, letter)
        await driver.pilot.pause()
        assert happened.count("drained") <= 1


async def test_a_reply_that_no_one_sees_is_taken_in_more_rarely() -> None:
    async with writing() as (driver, happened):
        await driver.pilot.press("f2")
        await driver.until(lambda: isinstance(driver.app.screen, PerformanceScreen))
        feed = driver.chat.feed
        feed.drain()
        feed._unseen_timer.pause()
        happened.clear()
        for _ in range(20):
            feed.drain()
        assert "drained" not in happened
        feed._drain_unseen()
        assert happened.count("drained") == 1
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)
        driver.script.clock.advance(TYPING_PAUSE_S)
        await driver.until(lambda: happened.count("drained") > 1, "the chat is shown again")
