"""Shell commands after "!" in the prompt: asked once, their output goes with the next message."""

from __future__ import annotations

import pytest

from app.tui.actions import shell_command_of
from app.tui.screens import question
from app.tui.screens.question import RunShellScreen
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Script
from tests.app.scenes import tokens


@pytest.fixture(autouse=True)
def _calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "CALM_S", 0.0)


def test_a_line_after_the_sign_is_a_command():
    assert shell_command_of("!git diff ") == "git diff"
    assert shell_command_of(" !important") == ""
    assert shell_command_of("!one\ntwo") == ""
    assert shell_command_of("!") == ""


async def agree(driver: Driver) -> None:
    await driver.until(lambda: isinstance(driver.app.screen, RunShellScreen), "it is asked")
    await driver.pilot.press("y")


async def test_the_output_goes_with_the_next_message():
    async with chatting(Script(replies=[tokens("I see.")])) as driver:
        await driver.ready()
        await driver.say("!echo from-the-shell")
        await agree(driver)
        await driver.until(lambda: driver.prompt.draft.documents, "the output is attached")
        await driver.type("what is this?")
        await driver.pilot.press("enter")
        await driver.last_reply()
        text = driver.chat.core.chat_session.conversation.messages[0].text
        assert "from-the-shell\n```" in text
        assert text.rstrip().endswith("what is this?")

        await driver.say("!echo asked-once")
        await driver.until(lambda: "asked-once" in driver.prompt.draft.documents)
        await driver.type("!echo second")
        await driver.pilot.press("enter")
        await driver.until(lambda: "second" in driver.prompt.draft.documents)
        assert "asked-once" in driver.prompt.draft.documents


async def test_a_refused_command_comes_back_as_a_message():
    async with chatting(Script()) as driver:
        await driver.ready()
        await driver.say("!important")
        await driver.until(lambda: isinstance(driver.app.screen, RunShellScreen))
        await driver.pilot.press("n")
        await driver.until(lambda: driver.prompt.text == " !important")
        assert driver.chat.core.chat_session.conversation.is_empty


async def test_escape_stops_a_command():
    async with chatting(Script()) as driver:
        await driver.ready()
        await driver.say("!sleep 300")
        await agree(driver)
        await driver.until(lambda: driver.chat.composer.shell._running is not None)
        await driver.pilot.press("escape")
        await driver.note("Stopped: sleep 300")
        assert driver.prompt.text == ""
