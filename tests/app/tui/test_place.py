"""The source screen: the passages of a document that a reply cites."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.tui.screens.place import PlaceScreen
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Script

BOOK = "\n".join(f"Line {n} is about {n} steamers." for n in range(1, 41))


async def ask(driver: Driver, question: str, n: int) -> None:
    driver.prompt.insert(question)
    await driver.pilot.press("enter")
    await driver.until(
        lambda: len(driver.chat.core.chat_session.conversation.messages) == 2 * n, "a reply"
    )


async def test_enter_on_a_reply_shows_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(BOOK)
    replies = [
        ["It says so twice", " (book.txt, line 20)", " and on line 30."],
        ["You are ", "welcome."],
    ]
    script = Script(n_ctx=2048, replies=replies)
    async with chatting(script, size=(80, 24)) as driver:
        await driver.say("/place")
        await driver.note("The last reply has no source")
        await driver.say("/read book.txt")
        await driver.until(lambda: driver.prompt.draft.files_line, "it is attached")
        await ask(driver, "where?", 1)
        await driver.shows("see book.txt line 20 · book.txt line 30")
        await driver.shows("/place shows its source")
        await driver.pilot.press("ctrl+up")
        await driver.shows("Enter shows book.txt line 20")
        await driver.pilot.press("enter")
        await driver.until(lambda: isinstance(driver.app.screen, PlaceScreen), "the place")
        await driver.shows("book.txt line 20")
        await driver.until(
            lambda: "   18  Line 18" in driver.screen_text().splitlines()[1],
            "two lines come before it",
        )
        await driver.shows(" > 20  Line 20 is about 20 steamers.")
        await driver.pilot.press("tab")
        await driver.shows("2 of 2")
        await driver.shows(" > 30  Line 30 is about")
        await driver.pilot.press("escape")
        await driver.shows("where?")
        await driver.until(
            lambda: driver.chat.core.chat_session.journal.wait_until_saved(0), "saved"
        )
    async with chatting(script, resume="last") as driver:  # another day
        await driver.shows("on line 30.")
        await driver.say("/place")
        await driver.shows(" > 20  Line 20 is about")
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat, "back")
        driver.prompt.focus()
        await ask(driver, "thanks", 2)
        await driver.pilot.press("ctrl+up")
        reply = driver.chat.transcript.replies()[-1]
        await driver.until(lambda: reply.has_focus and reply.places == (), "it is from nowhere")
        assert "Enter shows" not in driver.screen_text()
        await driver.pilot.press("enter")
        await driver.until(lambda: driver.prompt.has_focus, "Enter leads back")
