"""The transcript follows what is added as long as its end is in sight, however the user came
there."""

import pytest

from app.tui.chat import transcript
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script


async def add_notes(driver: Driver, last: str, n_rows: int = 80) -> None:
    """Say much, by default more than any of these screens holds, and something more once that is
    drawn."""
    driver.chat.core.say("\n".join(f"{number} bottles" for number in range(n_rows)))
    await driver.until(
        lambda: driver.transcript.virtual_size.height > n_rows, "the long note has its place"
    )
    driver.chat.core.say(last)


async def sees(driver: Driver, text: str) -> None:
    """Wait for text in the transcript: what is out of sight stands at the prompt's edge."""
    await driver.until(
        lambda: text in driver.screen_text().partition("╭")[0], f"the transcript shows {text!r}"
    )


@pytest.mark.parametrize("keys", [["pageup"], ["ctrl+t", "pageup", "ctrl+t"]])
async def test_pages_in_a_conversation_that_fits_do_not_end_it(keys: list[str]) -> None:
    async with chatting() as driver:
        await driver.ask("hello")
        await driver.pilot.press(*keys)
        await add_notes(driver, "the last.")
        await sees(driver, "the last.")


async def test_a_page_up_ends_it_and_a_page_down_begins_it_again() -> None:
    async with chatting() as driver:
        await add_notes(driver, "the first.")
        await sees(driver, "the first.")
        await driver.pilot.press("pagedown")
        await driver.pilot.pause()
        await add_notes(driver, "the second.", n_rows=160)
        await sees(driver, "the second.")
        await driver.pilot.press("pageup")
        await driver.hides("the second.")
        driver.chat.core.say("unseen.")
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
    monkeypatch.setattr(transcript, "MAX_MOUNTED", 4)
    monkeypatch.setattr(transcript, "MOUNTED_AFTER_TRIM", 2)
    async with chatting(Script(replies=[["short"]], n_ctx=1 << 20), size=(80, 60)) as driver:
        for number in range(3):
            await driver.ask(f"question {number}")
        await driver.shows("earlier messages")
        await driver.pilot.press("pageup")
        await sees(driver, "question 0")
        await add_notes(driver, "the last.")
        await sees(driver, "the last.")


async def test_new_text_below_is_told_and_end_leads_to_it() -> None:
    script = Script(replies=[[f"line {number}  \n" for number in range(90)]], token_gate=Gate())
    async with chatting(script) as driver:
        gate = script.token_gate
        assert gate is not None
        await driver.say("count")
        gate.allow(40)
        await driver.until(gate.waiting.is_set)
        await driver.shows("line 38")
        await driver.shows("Esc stops the reply")
        await driver.hides("new text below")
        await driver.pilot.press("pageup")
        await driver.hides("line 38")
        gate.allow(20)
        await driver.shows("new text below (End) · Esc stops the reply")
        await driver.type("next")
        await driver.shows("Esc stops the reply")
        await driver.shows("new text below (ctrl+end)")
        await driver.pilot.press("home", "end")
        assert driver.transcript.is_scrolled_up
        await driver.pilot.press("end")
        await driver.shows("line 58")
        await driver.hides("new text below")
        gate.open()
        await driver.shows("line 89")


async def test_earlier_messages_that_come_back_are_no_new_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transcript, "MAX_MOUNTED", 8)
    monkeypatch.setattr(transcript, "MOUNTED_AFTER_TRIM", 4)
    async with chatting(Script(replies=[["short"]], n_ctx=1 << 20)) as driver:
        for number in range(8):
            await driver.ask(f"question {number}")
        await driver.pilot.press("pageup", "pageup", "pageup", "pageup")
        await sees(driver, "question 1")
        driver.chat.core.edge.show_keys()
        assert not driver.transcript.has_unseen
        assert "new text below" not in driver.prompt.border_subtitle
