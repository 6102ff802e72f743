"""The transcript follows what is added as long as its end is in sight, however the user came there."""

import pytest

from app.tui.widgets import transcript
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Script


async def add_notes(driver: Driver, last: str, n_rows: int = 80) -> None:
    """Say much, by default more than any of these screens holds, and something more once that is drawn."""
    driver.chat.note("\n".join(f"{number} bottles" for number in range(n_rows)))
    await driver.until(lambda: driver.transcript.virtual_size.height > n_rows, "the long note has its place")
    driver.chat.note(last)


async def sees(driver: Driver, text: str) -> None:
    """Wait for text in the transcript: what is out of sight stands at the prompt's edge."""
    await driver.until(lambda: text in driver.screen_text().partition("╭")[0], f"the transcript shows {text!r}")


@pytest.mark.parametrize("keys", [["pageup"], ["pagedown"], ["pageup", "pagedown"], ["ctrl+t", "pageup", "ctrl+t"]])
async def test_pages_in_a_conversation_that_fits_do_not_end_it(keys: list[str]) -> None:
    async with chatting() as driver:
        await driver.ask("hello")
        await driver.pilot.press(*keys)
        await add_notes(driver, "the last.")
        await sees(driver, "the last.")


async def test_a_page_down_at_the_end_does_not_end_it() -> None:
    async with chatting() as driver:
        await add_notes(driver, "the first.")
        await sees(driver, "the first.")
        await driver.pilot.press("pagedown")
        await driver.pilot.pause()
        await add_notes(driver, "the last.", n_rows=160)
        await sees(driver, "the last.")


async def test_a_page_up_ends_it_and_a_page_down_begins_it_again() -> None:
    async with chatting() as driver:
        await add_notes(driver, "the first.")
        await driver.pilot.press("pageup")
        await driver.hides("the first.")
        driver.chat.note("unseen.")
        await driver.shows("unseen.")
        assert driver.transcript.is_scrolled_up
        await driver.pilot.press("pagedown", "pagedown")
        await driver.until(lambda: not driver.transcript.is_scrolled_up)
        await add_notes(driver, "the last.")
        await sees(driver, "the last.")


async def test_a_larger_terminal_that_shows_the_end_begins_it_again() -> None:
    async with chatting() as driver:
        await add_notes(driver, "the first.", n_rows=30)
        await driver.pilot.press("pageup", "pageup", "pageup")
        await driver.hides("the first.")
        await driver.pilot.resize_terminal(80, 60)
        await sees(driver, "the first.")
        await add_notes(driver, "the last.")
        await sees(driver, "the last.")


async def test_earlier_messages_that_fit_do_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "MOST_MOUNTED", 8)
    monkeypatch.setattr(transcript, "KEPT_MOUNTED", 4)
    async with chatting(Script(replies=[["short"]], n_ctx=1 << 20), size=(80, 60)) as driver:
        for number in range(5):
            await driver.ask(f"question {number}")
        await driver.shows("earlier messages")
        await driver.pilot.press("pageup")
        await sees(driver, "question 0")
        await add_notes(driver, "the last.")
        await sees(driver, "the last.")
