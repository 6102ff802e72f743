"""Branches of a conversation in the chat: an edit keeps what was there, and keys go through it."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest

from app.conversations.store import Store
from app.tui.screens.question import DeleteBranchScreen
from app.tui.widgets.message_view import MessageView, ReplyView, UserView
from tests.app import chat_driver
from tests.app.chat_driver import Driver, chatting
from tests.app.conversations.fake_states import files
from tests.app.fake_engine import Gate, Script
from tests.app.scenes import tokens


def script(*replies: str) -> Script:
    return Script(replies=[tokens(reply) for reply in replies])


QUESTION = ("Delete this branch ‹ 1/2 › from message 1, with the 3", "messages after it?")


def texts(driver: Driver) -> list[str]:
    return [message.text for message in driver.chat.core.chat_session.conversation.messages]


def shown(driver: Driver) -> list[str]:
    return [view.text for view in driver.transcript.messages()]


async def edit(driver: Driver, number: int, text: str) -> None:
    """Edit a question and wait for its reply."""
    await driver.say(f"/edit {number}")
    await driver.until(lambda: driver.chat.editing.is_active)
    await driver.say(text)
    await idle(driver, 2 * number)


async def idle(driver: Driver, n_messages: int) -> None:
    """Wait for the end of a reply that makes the conversation this long."""
    chat_session = driver.chat.core.chat_session
    await driver.until(lambda: len(texts(driver)) == n_messages and not chat_session.is_busy)
    await driver.last_reply()


async def show(driver: Driver, key: str, *expected: str) -> None:
    """Press a key and wait for the messages of another branch."""
    await driver.pilot.press(key)
    await driver.until(lambda: texts(driver) == list(expected), f"{expected} are shown")
    await driver.until(lambda: shown(driver) == list(expected))
    await driver.until(lambda: isinstance(driver.app.focused, MessageView), "a message has focus")


async def focus_first(driver: Driver) -> None:
    """Focus the first message."""
    while not isinstance(driver.app.focused, UserView) or driver.app.focused.text == "two":
        await driver.pilot.press("ctrl+up")


async def test_an_edit_keeps_what_follows_and_keys_bring_it_back() -> None:
    async with chatting(script("One.", "Two.", "Uno.", "Due.")) as driver:
        await driver.ask("one")
        await driver.ask("two")
        await edit(driver, 1, "uno")
        assert texts(driver) == ["uno", "Uno."]
        await driver.shows("‹ 2/2 ›")
        await focus_first(driver)
        await driver.shows("left previous branch · y copy")

        await show(driver, "left", "one", "One.", "two", "Two.")
        await driver.shows("right next branch · y copy")
        await driver.shows("‹ 1/2 ›")
        focused = driver.app.focused
        assert isinstance(focused, UserView)
        assert focused.text == "one"
        await driver.pilot.press("left")
        await driver.shows("this is the first branch ‹ 1/2 ›")

        await show(driver, "right", "uno", "Uno.")
        await driver.pilot.press("right")
        await driver.shows("this is the last branch ‹ 2/2 ›")
        await driver.ask("due")
        context = driver.script.opened[-1].sessions[0].tokens
        assert driver.script.opened[-1].tokenizer.decode(context) == "unoUno.dueDue."


async def test_notes_on_replaced_messages_go_with_them() -> None:
    async with chatting(script("One.", "Uno.")) as driver:
        await driver.ask("one")
        driver.chat.core.say("a note on this reply")
        await driver.shows("a note on this reply")
        await edit(driver, 1, "uno")
        await driver.hides("a note on this reply")


async def test_branches_are_there_after_a_restart() -> None:
    async with chatting(script("One.", "Two.", "Uno.")) as driver:
        await driver.ask("one")
        await driver.ask("two")
        await edit(driver, 1, "uno")
    (entry,) = Store().search("Two.")
    assert entry.snippet.startswith("(in another branch)")
    async with chatting(script()) as driver:
        await driver.until(lambda: shown(driver) == ["uno", "Uno."])
        await driver.shows("‹ 2/2 ›")
        await driver.say("/branch")
        await driver.until(lambda: shown(driver) == ["one", "One.", "two", "Two."])
        await driver.note("‹ 1/2 › from message 1")
    async with chatting(script()) as driver:
        await driver.until(lambda: shown(driver) == ["one", "One.", "two", "Two."])


async def test_an_edited_reply_and_answers_again_are_branches() -> None:
    async with chatting(script("One.", "Two.", "Once.", "more")) as driver:
        await driver.ask("one")
        await driver.ask("two")
        await driver.pilot.press("f9")
        await driver.until(lambda: texts(driver)[-1] == "Once.")
        await idle(driver, 4)
        await driver.shows("‹ 2/2 › · 1 token")
        driver.chat.editing._begin(1)
        await driver.until(lambda: driver.prompt.text == "One.")
        await driver.say("One or ")
        await idle(driver, 2)
        assert texts(driver) == ["one", "One or more"]
        await driver.say("/branch 1")
        await driver.until(lambda: shown(driver) == ["one", "One.", "two", "Once."])
        await driver.say("/branch")
        await driver.until(lambda: shown(driver)[-1] == "Two.")
        await driver.note("‹ 1/2 › from reply 2")
        await driver.say("/branch 3")
        await driver.note("/branch takes a number from 1 to 2")


async def test_a_click_on_the_number_shows_a_branch() -> None:
    async with chatting(script("One.", "Once.")) as driver:
        await driver.ask("one")
        await driver.pilot.press("f9")
        await driver.until(lambda: texts(driver) == ["one", "Once."])
        await driver.last_reply()
        await driver.shows("‹ 2/2 ›")
        await driver.pilot.click(driver.transcript.replies()[-1]._footer, offset=(0, 0))
        await driver.until(lambda: shown(driver) == ["one", "One."])
        assert driver.app.focused is driver.prompt
        await driver.shows("‹ 1/2 ›")
        await driver.pilot.click(driver.transcript.replies()[-1]._footer, offset=(6, 0))
        await driver.until(lambda: shown(driver) == ["one", "Once."])


async def test_deleting_a_branch_asks() -> None:
    async with chatting(script("One.", "Two.", "Uno.")) as driver:
        await driver.ask("one")
        await driver.ask("two")
        await edit(driver, 1, "uno")
        await driver.say("/branch 1")
        await driver.until(lambda: shown(driver) == ["one", "One.", "two", "Two."])
        await focus_first(driver)
        for key in ("escape", "y"):
            await driver.pilot.press("ctrl+d")
            await driver.until(lambda: isinstance(driver.app.screen, DeleteBranchScreen))
            for row in QUESTION:
                await driver.shows(row)
            driver.script.clock.advance(1.0)
            await driver.pilot.press(key)
            await driver.until(lambda: driver.app.screen is driver.chat)
            if key == "escape":
                assert texts(driver) == ["one", "One.", "two", "Two."]
        await driver.until(lambda: shown(driver) == ["uno", "Uno."])
        await driver.note("The branch is deleted. Now: from message 1")
        await driver.hides("‹")
        await driver.say("/branch delete")
        await driver.note("there is only one branch")
    assert Store().search("Two.") == []


async def test_a_stopped_edit_makes_no_branch() -> None:
    async with chatting(script("One.", "Uno.")) as driver:
        await driver.ask("one")
        await driver.say("/edit")
        await driver.until(lambda: driver.chat.editing.is_active)
        driver.script.prefill_gate = gate = Gate()
        await driver.say("uno")
        await driver.until(gate.waiting.is_set)
        await driver.pilot.press("escape")
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        assert texts(driver) == ["one", "One."]
        gate.open()
        await driver.hides("‹")


async def test_a_message_without_branches_says_so() -> None:
    async with chatting(script("One.")) as driver:
        await driver.ask("one")
        await driver.pilot.press("ctrl+up", "right")
        await driver.shows("no other branch here")
        await driver.pilot.press("delete")
        await driver.shows("no other branch here")


async def test_no_branch_is_shown_while_a_reply_is_written() -> None:
    async with chatting(script("One.", "Once.", "Two.")) as driver:
        await driver.ask("one")
        await driver.pilot.press("f9")
        await driver.until(lambda: texts(driver) == ["one", "Once."])
        await idle(driver, 2)
        driver.script.token_gate = gate = Gate()
        await driver.say("two")
        await driver.until(gate.waiting.is_set)
        await driver.say("/branch")
        await driver.note("the engine is busy")
        assert texts(driver) == ["one", "Once.", "two"]
        gate.open()


async def test_a_queued_message_stays_below_another_branch() -> None:
    async with chatting(script("One.", "Uno.")) as driver:
        await driver.ask("one")
        await edit(driver, 1, "uno")
        view = UserView("waits")
        await driver.transcript._messages.mount(view)
        driver.transcript.waiting.append(view)
        await driver.say("/branch")
        await driver.until(lambda: shown(driver) == ["one", "One.", "waits"])


async def test_a_saved_state_serves_the_other_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = chat_driver.options_for
    options = partial(dataclasses.replace, state_files=partial(files, reads_ahead=True))
    monkeypatch.setattr(chat_driver, "options_for", lambda script: options(plain(script)))
    long_reply = "word " * 40
    async with chatting(script(long_reply, "Two.", "Uno.", "Three.")) as driver:
        await driver.ask("one")
        # The scripted replies take no time, the first write to a slow disk may take seconds.
        await driver.until(lambda: driver.chat.core.chat_session.journal.state_path is not None)
        await driver.ask("two")
        await edit(driver, 1, "uno")
        await driver.say("/branch")
        await driver.until(lambda: texts(driver)[0] == "one")
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        await driver.note("restored")
        reply = await driver.ask("three")
        assert isinstance(reply, ReplyView)
        assert reply.message is not None
        assert reply.message.figures is not None
        assert reply.message.figures.reused_tokens > 40
        assert reply.message.figures.prompt_tokens < 10


@pytest.mark.parametrize("is_live", [True, False])
async def test_f8_opens_the_branch_and_the_message_of_a_match(is_live: bool) -> None:
    replies = ("One.", "A zebra has stripes. " * 30, "Uno.")
    async with chatting(script(*replies, "Other.")) as driver:
        for question in ("one", "two"):
            await driver.ask(question)
        await edit(driver, 1, "uno")
        if not is_live:
            await driver.say("/new")
            await driver.note("New conversation")
            await driver.ask("other")
        await driver.pilot.press("f8", *"zebra")
        await driver.shows("(in another branch)")
        await driver.pilot.press("enter")
        await driver.until(lambda: texts(driver)[:3] == ["one", "One.", "two"])
        await driver.shows("find: zebra · 1 of 30")
        await driver.until(lambda: "zebra has stripes" in driver.screen_text())
    assert [m.text for m in Store().read("000001").conversation.messages][:2] == ["one", "One."]
