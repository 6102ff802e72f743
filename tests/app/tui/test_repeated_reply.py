"""A reply that repeats itself, in the chat: it is shown as it is kept."""

from __future__ import annotations

from tests.app.chat_driver import chatting
from tests.app.fake_engine import Script


async def test_a_repeated_reply_is_shown_once_and_cut() -> None:
    unit = [f"{word} " for word in ["round", "and", "about", "it", "goes"]]
    script = Script(replies=[["Well: ", *unit * 100]])
    async with chatting(script) as driver:
        await driver.ask("first")
        await driver.shows("it kept repeating itself")
        [reply] = driver.transcript.replies()
        message = driver.chat.core.chat_session.last_message
        assert message is not None
        assert reply.text == message.text
        assert reply.text.count("Well: ") == 1
