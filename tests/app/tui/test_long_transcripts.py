"""A long conversation costs as much as a short one: what is far back has no widgets."""

import re

import pytest
from textual.widgets import Static

from app.tui.chat import transcript
from app.tui.widgets.message_view import ReplyView, UserView
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Script

pytestmark = pytest.mark.slow

REPLY = (
    "# Title\n\nSome **fat** text.\n\n- one\n- two\n\n```\nx = 1\n```\n\n| a | b |\n|---|---|\n| "
    "1 | 2 |\n"
)

MAX_MOUNTED = 5
MOUNTED_AFTER_TRIM = 3
"""Fewer than the program has: an eighth of the messages shows the same."""


@pytest.fixture(autouse=True)
def fewer_are_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "MAX_MOUNTED", MAX_MOUNTED)
    monkeypatch.setattr(transcript, "MOUNTED_AFTER_TRIM", MOUNTED_AFTER_TRIM)


def script(text: str = REPLY) -> Script:
    return Script(replies=[re.findall(r"\s*\S+|\s+$", text)], n_ctx=1 << 20)


async def talk(driver: Driver, n_turns: int, first: int = 0) -> None:
    for number in range(first, first + n_turns):
        await driver.ask(f"question {number}")


async def test_widgets_stay_few_and_one_put_aside_can_be_edited() -> None:
    async with chatting(script()) as driver:
        for n_turns in (3, 6):
            await talk(driver, 3, n_turns - 3)
            await driver.until(lambda: len(driver.transcript.messages()) <= MAX_MOUNTED)
            assert len(driver.transcript.query("*")) < 6 * MAX_MOUNTED + 50
            assert len(driver.chat.core.chat_session.conversation.messages) == 2 * n_turns
        assert driver.transcript.messages()[-1].text == REPLY
        await driver.say("/edit 2")
        await driver.until(lambda: driver.prompt.text == "question 1")
        await driver.type("!")
        await driver.pilot.press("enter")
        await driver.until(lambda: len(driver.chat.core.chat_session.conversation.messages) == 4)
        await driver.until(lambda: len(driver.transcript.messages()) == 4)


async def test_messages_put_aside_come_back_where_the_user_goes() -> None:
    n_turns = MAX_MOUNTED // 2 + 3
    async with chatting(script("short"), size=(80, 24)) as driver:
        await talk(driver, n_turns)
        for key in ("pageup", "ctrl+up"):
            n_messages = 2 * n_turns
            await driver.until(
                lambda n_messages=n_messages: len(driver.transcript.messages()) < n_messages
            )
            for _ in range(200):
                if len(driver.transcript.messages()) == n_messages:
                    break
                await driver.pilot.press(key)
                await driver.pilot.pause()
            views = driver.transcript.messages()
            assert [view.text for view in views[::2]] == [f"question {n}" for n in range(n_turns)]
            assert all(
                isinstance(view, (UserView, ReplyView)[n % 2]) for n, view in enumerate(views)
            )
            assert [
                view.message for view in views
            ] == driver.chat.core.chat_session.conversation.messages
            await driver.say("/copy")  # and the newest are as they were
            await talk(driver, 1, n_turns)
            n_turns += 1
            await driver.until(
                lambda: len(driver.transcript.messages()) <= MOUNTED_AFTER_TRIM,
                "they are put aside again",
            )
        await driver.until(
            lambda: (
                "earlier messages" in str(driver.transcript.query_one("#earlier", Static).render())
            )
        )
        await driver.say("/new")
        await driver.note("New conversation")
        assert not driver.transcript.show_earlier()


@pytest.mark.smoke
async def test_figures_and_thinking_of_a_message_put_aside_are_kept() -> None:
    text = "<think>\nhm\n</think>\n\nYes."
    async with chatting(script(text)) as driver:
        reply = await driver.ask("well?")
        twin = reply.copy()
        assert (twin.text, twin.footer, twin.message) == (reply.text, reply.footer, reply.message)
        assert twin.thinking.visible_text == reply.thinking.visible_text
        assert twin.thinking.text == "hm\n"
