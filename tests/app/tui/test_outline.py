"""The outline: a list of one's questions in the open conversation, from which one goes to any."""

from __future__ import annotations

from app.conversations.conversation import ChatMessage, Role
from app.tui.screens.outline import OutlineScreen, questions_of
from app.tui.widgets.message_view import UserView
from tests.app.chat_driver import chatting
from tests.app.fake_engine import Script
from tests.app.scenes import tokens


def test_questions_are_numbered_with_their_replies():
    messages = [
        ChatMessage(Role.USER, "one"),
        ChatMessage(Role.ASSISTANT, "first reply"),
        ChatMessage(Role.USER, "two\nlines"),
    ]
    questions = questions_of(messages)
    assert [(q.index, q.number, q.text, q.reply) for q in questions] == [
        (0, 1, "one", "first reply"),
        (2, 2, "two\nlines", ""),
    ]


async def test_enter_goes_to_a_question():
    replies = [tokens(f"reply {number} " + "word\n" * 8) for number in range(30)]
    async with chatting(Script(replies=replies)) as driver:
        await driver.ready()
        for number in range(30):
            await driver.ask(f"question {number}")
        await driver.say("/outline")
        await driver.shows("30 questions")
        assert isinstance(driver.app.screen, OutlineScreen)
        await driver.pilot.press(*"question", "space", "3")
        await driver.shows("   4  question 3")
        await driver.pilot.press("up", "up", "home", "enter")
        await driver.until(lambda: driver.app.screen is driver.chat)
        await driver.until(lambda: isinstance(driver.app.focused, UserView))
        assert driver.app.focused.text == "question 3"


async def test_an_empty_conversation_has_no_questions():
    async with chatting(Script()) as driver:
        await driver.ready()
        await driver.say("/outline")
        await driver.shows("No questions yet")
