"""Actions on messages: focus, copy, go on, answer again, edit, unfold."""

import re

import pytest
from textual import events

from app.conversations.conversation import Ending
from app.program import paths
from app.tui.widgets import message_view
from app.tui.widgets.message_view import ReplyView, UserView
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script

pytestmark = pytest.mark.slow

CODE = "Try\n\n```python\nx = 1\n```\n\nor\n\n```sh\nls\n```\n"


def tokens(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


@pytest.fixture
def terminal_clipboard(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


async def stop_after(driver: Driver, n_tokens: int, text: str = "count") -> ReplyView:
    """Ask, let ``n_tokens`` tokens come, press Esc, and wait for the partial reply."""
    driver.script.token_gate = gate = Gate()
    before = driver.chat.core.chat_session.conversation.last_reply
    await driver.say(text)
    gate.allow(n_tokens)
    await driver.until(gate.waiting.is_set)
    await driver.pilot.press("escape")
    await driver.until(
        lambda: driver.chat.core.chat_session.conversation.last_reply is not before,
        "the reply has ended",
    )
    reply = await driver.last_reply()
    gate.open()
    return reply


async def stop_edit_before_its_reply(driver: Driver) -> Gate:
    """Edit the first message, send it, and press Esc before a token comes; the gate still holds
    what would read it."""
    driver.script.prefill_gate = gate = Gate()
    driver.chat.editing.action_edit("1")
    await driver.until(lambda: driver.prompt.text == "first")
    await driver.type(" again")
    await driver.pilot.press("enter")
    await driver.until(gate.waiting.is_set)
    await driver.pilot.press("escape")
    await driver.until(lambda: driver.prompt.text == "first again", "the text is back")
    return gate


async def test_keys_lead_to_messages_and_letters_to_the_prompt():
    async with chatting() as driver:
        reply = await driver.ask("hello")
        await driver.pilot.press("ctrl+up")
        await driver.until(lambda: driver.app.focused is reply)
        await driver.shows("▌>model")  # by shape and by a bar
        await driver.shows("y copy")
        await driver.pilot.press("ctrl+up")
        await driver.until(lambda: isinstance(driver.app.focused, UserView))
        await driver.pilot.press("ctrl+up")  # there is nothing above
        await driver.pilot.press("ctrl+down", "ctrl+down")
        await driver.until(lambda: driver.app.focused is driver.prompt)
        await driver.hides(">")
        await driver.pilot.press("ctrl+up", "escape")
        await driver.until(lambda: driver.app.focused is driver.prompt)
        await driver.pilot.press("ctrl+up", "w", "h", "y")
        await driver.until(lambda: driver.prompt.text == "why")
        await driver.pilot.press("ctrl+up")
        await driver.until(lambda: driver.app.focused is reply)
        driver.app.post_message(events.Paste(" not"))
        await driver.until(lambda: driver.prompt.text == "why not")
        await driver.pilot.press("ctrl+up")
        await driver.until(lambda: driver.app.focused is reply)
        for key, character in (
            ("ctrl+down", None),
            ("r", "r"),
            ("e", "e"),
            ("y", "y"),
        ):  # right after each other
            driver.app.post_message(events.Key(key, character))
        await driver.until(lambda: driver.prompt.text == "why notrey")
        assert driver.transcript.replies() == [reply]
        driver.prompt.show_text("")
        await driver.pilot.press("ctrl+up", "ctrl+up", "e")
        await driver.until(
            lambda: any(row.startswith("▌-you") for row in driver.screen_text().splitlines())
        )
        await driver.pilot.press("escape")
        await driver.until(
            lambda: any(row.startswith(" you") for row in driver.screen_text().splitlines())
        )


async def test_messages_and_their_code_blocks_are_copied(terminal_clipboard: None):
    async with chatting(Script(replies=[tokens(CODE)])) as driver:
        await driver.ask("how")
        await driver.pilot.press("ctrl+up", "y")
        await driver.note("sent to the terminal's clipboard (if pasting does not work: /copy file)")
        assert driver.app.clipboard == driver.transcript.replies()[0].text
        await driver.pilot.press("u")
        await driver.note("code block 1 of 2: sent")
        assert driver.app.clipboard == "x = 1"
        await driver.pilot.press("u")
        await driver.note("code block 2 of 2: sent")
        assert driver.app.clipboard == "ls"
        await driver.pilot.press("u")
        await driver.until(lambda: driver.app.clipboard == "x = 1")
        await driver.pilot.press("ctrl+up", "y")
        await driver.until(lambda: driver.app.clipboard == "how")
        await driver.pilot.press("u")
        await driver.note("there is no code block in this message")
        await driver.say("/copy code 2")
        await driver.until(lambda: driver.app.clipboard == "ls")
        await driver.say("/copy code 3")
        await driver.note("there are code blocks 1 to 2")
        await driver.say("/copy everything")
        await driver.note("usage: /copy")
        path = paths.state_dir() / "copied.txt"
        await driver.say("/copy code file")
        await driver.note(f"code block 1 of 2: written to {path}")
        assert path.read_text(encoding="utf-8") == "x = 1"


async def test_escape_focuses_the_partial_reply_and_c_goes_on():
    async with chatting(Script(replies=[tokens("one two three four five six")])) as driver:
        partial = await stop_after(driver, 2)
        await driver.until(lambda: driver.app.focused is partial)
        await driver.shows("c continue")
        assert partial.footer.endswith("first word after 1.0 s · stopped")
        await driver.pilot.press("c")
        await driver.until(lambda: driver.transcript.replies() != [partial])
        whole = await driver.last_reply()
        assert whole.text == "one two three four five six"
        assert whole.footer == "6 tokens · 2.0 tok/s · first word after 1.0 s"
        messages = driver.chat.core.chat_session.conversation.messages
        assert [m.text for m in messages] == ["count", "one two three four five six"]
        assert (messages[-1].ending, messages[-1].figures.tokens) == (Ending.COMPLETE, 6)
        assert driver.transcript.replies() == [whole]
        await driver.say("/continue")
        await driver.note("there is no unfinished reply at the end")


async def test_escape_neither_scrolls_nor_takes_the_prompts_focus():
    async with chatting(Script(replies=[[f"line {number}  \n" for number in range(50)]])) as driver:
        driver.script.token_gate = gate = Gate()
        await driver.say("count")
        gate.allow(40)
        await driver.until(gate.waiting.is_set)
        await driver.shows("line 38")
        await driver.pilot.press("pageup")
        await driver.hides("line 38")
        seen = driver.transcript.scroll_y
        await driver.pilot.press("escape")
        await driver.until(lambda: isinstance(driver.app.focused, ReplyView))
        await driver.shows("c continue")
        await driver.until(lambda: "stopped" in driver.transcript.replies()[0].footer)
        for _ in range(5):
            await driver.pilot.pause()
        assert driver.transcript.scroll_y == driver.transcript.scroll_target_y == seen
        driver.script.token_gate = again = Gate()
        gate.open()
        await driver.say("count")
        again.allow(1)
        await driver.until(again.waiting.is_set)
        await driver.type("next")
        await driver.until(lambda: driver.prompt.text == "next")
        await driver.pilot.press("escape")
        await driver.until(lambda: len(driver.chat.core.chat_session.conversation.messages) == 4)
        await driver.last_reply()
        assert driver.app.focused is driver.prompt


async def test_reply_figures_fit_80_columns_and_all_show_on_focus():
    async with chatting(Script(replies=[tokens("one two three four")])) as driver:
        await driver.ask("count to four, and say every number as slowly as you can")
        await driver.shows("4 tokens · 2.0 tok/s · first word after")
        await driver.hides("read ")
        await driver.pilot.press("ctrl+up")
        await driver.shows("read ")
        await driver.pilot.press("escape")
        await driver.hides("read ")
        await driver.pilot.resize_terminal(100, 24)
        await driver.shows("read ")
        await driver.pilot.resize_terminal(40, 12)
        await driver.hides("first word after")
        await driver.shows("4 tokens · 2.0 tok/s")


async def test_words_typed_after_a_stop_are_the_next_message(monkeypatch):
    monkeypatch.setattr(message_view, "KEY_DELAY_S", 5.0)  # however slowly this machine types
    async with chatting(Script(replies=[tokens("one two three four")])) as driver:
        for words in ("cut it", "You"):
            partial = await stop_after(driver, 2)
            await driver.until(lambda partial=partial: driver.app.focused is partial)
            await driver.type(words)
            await driver.until(lambda words=words: driver.prompt.text == words)
            assert driver.transcript.replies()[-1] is partial
            driver.prompt.show_text("")


async def test_a_continuation_stopped_at_once_keeps_the_reply():
    async with chatting(Script(replies=[tokens("one two three")]), size=(100, 24)) as driver:
        partial = await stop_after(driver, 2)
        driver.script.token_gate = gate = Gate()
        await driver.say("/continue")
        await driver.until(gate.waiting.is_set)
        await driver.pilot.press("escape")
        await driver.note("stopped before the reply began; the conversation is as it was")
        assert driver.transcript.replies() == [partial]
        assert not partial.has_class("-replaced")
        await driver.shows("stopped · /continue resumes")
        assert [m.text for m in driver.chat.core.chat_session.conversation.messages] == [
            "count",
            "one two",
        ]
        gate.open()
        await driver.say("/continue")
        await driver.until(lambda: driver.transcript.replies()[-1].text == "one two three")
        await stop_after(driver, 2)
        await driver.shows("stopped · /continue resumes")
        await driver.ask("another")
        await driver.hides("/continue resumes")
        assert "stopped" in driver.screen_text()


@pytest.mark.smoke
async def test_a_regeneration_stopped_at_once_restores_the_old_reply():
    script = Script(replies=[tokens("First."), tokens("Second.")])
    async with chatting(script) as driver:
        first = await driver.ask("hello")
        script.prefill_gate = gate = Gate()
        await driver.pilot.press("ctrl+up", "r")
        await driver.until(gate.waiting.is_set)
        assert first.has_class("-replaced")
        await driver.pilot.press("escape")
        await driver.note("the conversation is as it was")
        assert driver.transcript.replies() == [first]
        assert [m.text for m in driver.chat.core.chat_session.conversation.messages] == [
            "hello",
            "First.",
        ]
        gate.open()
        script.replies = [tokens("Third.")]
        await driver.ask("and now?")
        session = script.opened[-1].sessions[-1]
        assert script.opened[-1].tokenizer.decode(session.tokens) == "helloFirst.and now?Third."


async def test_an_earlier_message_is_edited_after_its_price_was_shown():
    script = Script(replies=[tokens("One."), tokens("Two."), tokens("Three."), tokens("New.")])
    async with chatting(script, size=(100, 30)) as driver:
        await driver.say("/edit")
        await driver.note("there is no message to edit yet")
        for question in ("first", "second", "third"):
            await driver.ask(question)
        await driver.say("/edit 4")
        await driver.note("/edit takes a number from 1 to 3")
        await driver.say("/edit")
        await driver.until(lambda: driver.prompt.text == "third")
        await driver.pilot.press("escape")
        await driver.pilot.press("ctrl+up", "ctrl+up", "ctrl+up", "ctrl+up")
        assert driver.app.focused.text == "second"
        await driver.pilot.press("e")
        await driver.until(lambda: driver.prompt.text == "second")
        line = "editing message 2 · keeps 8 tokens in another branch · starts in about 1 s"
        await driver.shows(line)
        await driver.shows("Enter send · Esc cancel")
        await driver.type(" thought of mine")
        await driver.shows("keeps 9 tokens in another branch · starts in")
        await driver.pilot.press("enter")
        await driver.until(lambda: driver.transcript.replies()[-1].text == "New.")
        await driver.last_reply()
        messages = driver.chat.core.chat_session.conversation.messages
        assert [m.text for m in messages] == ["first", "One.", "second thought of mine", "New."]
        shown = [view.text for view in driver.transcript.messages()]
        assert shown == ["first", "One.", "second thought of mine", "New."]
        await driver.hides("editing")
        session = script.opened[-1].sessions[-1]
        assert (
            script.opened[-1].tokenizer.decode(session.tokens)
            == "firstOne.second thought of mineNew."
        )


async def test_answering_again_or_going_on_ends_the_editing():
    async with chatting(Script(replies=[tokens("one two three")])) as driver:
        for n_asked, keys in enumerate((("f9",), ("ctrl+up", "c")), 1):
            partial = await stop_after(driver, 2)
            driver.prompt.show_text("a draft")
            driver.chat.editing.action_edit("reply")
            await driver.until(lambda: driver.prompt.text == "one two")
            await driver.pilot.press(*keys)
            await driver.until(
                lambda partial=partial: (
                    driver.transcript.replies() and driver.transcript.replies()[-1] is not partial
                )
            )
            await driver.last_reply()
            assert not driver.chat.editing.is_active
            assert driver.prompt.text == "a draft"
            await driver.hides("editing")
            texts = [m.text for m in driver.chat.core.chat_session.conversation.messages]
            assert texts == ["count", "one two three"] * n_asked


async def test_a_draft_returns_once_an_edit_is_sent_or_all_is_new():
    async with chatting() as driver:
        await driver.ask("first")
        for what in ("1", "reply"):
            driver.prompt.show_text("a draft")
            driver.chat.editing.action_edit(what)
            await driver.until(lambda: driver.chat.editing.is_active)
            await driver.type(" more")
            await driver.pilot.press("enter")
            await driver.until(lambda: driver.prompt.text == "a draft")
            await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
            assert (
                "more" in driver.chat.core.chat_session.conversation.messages[what == "reply"].text
            )
            assert driver.prompt.text == "a draft"
        driver.chat.editing.action_edit("reply")
        await driver.until(lambda: driver.prompt.text != "a draft")
        driver.chat.messages.action_continue_reply()  # what cannot be done leaves the editing as it is
        await driver.note("there is no unfinished reply at the end")
        assert driver.chat.editing.is_of_reply
        await driver.chat.conversations.action_new()
        assert driver.prompt.text == "a draft"
        assert not driver.chat.editing.is_active
        assert not driver.transcript.messages()


async def test_an_edit_stopped_before_its_reply_brings_everything_back():
    script = Script(replies=[tokens("One."), tokens("Two."), tokens("New.")])
    async with chatting(script) as driver:
        await driver.ask("first")
        await driver.ask("second")
        for what, text in (("1", "first"), ("reply", "Two.")):  # Esc before it is sent
            driver.prompt.show_text("a draft")
            driver.chat.editing.action_edit(what)
            await driver.until(lambda text=text: driver.prompt.text == text)
            if what == "1":
                assert all(view.has_class("-replaced") for view in driver.transcript.messages())
            await driver.type("+")
            await driver.pilot.press("escape")
            await driver.until(lambda: driver.prompt.text == "a draft")
            assert not any(view.has_class("-replaced") for view in driver.transcript.messages())
            assert len(driver.chat.core.chat_session.conversation.messages) == 4
        driver.prompt.show_text("a draft")
        gate = await stop_edit_before_its_reply(driver)
        assert [m.text for m in driver.chat.core.chat_session.conversation.messages][::2] == [
            "first",
            "second",
        ]
        assert len(driver.transcript.messages()) == 4
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.prompt.text == "a draft", "the draft is back")
        assert not any(view.has_class("-replaced") for view in driver.transcript.messages())
        gate.open()
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        gate = await stop_edit_before_its_reply(driver)
        gate.open()
        await driver.pilot.press("enter")
        await driver.until(
            lambda: not driver.chat.core.chat_session.is_busy and not driver.chat.editing.is_active
        )
        assert [m.text for m in driver.chat.core.chat_session.conversation.messages] == [
            "first again",
            "New.",
        ]
        assert [view.text for view in driver.transcript.messages()] == ["first again", "New."]


async def test_an_edit_that_does_not_fit_returns_to_the_prompt():
    script = Script(replies=[tokens("One."), tokens("Two."), tokens("New.")], n_ctx=300)
    long = "far too long " * 200
    async with chatting(script) as driver:
        await driver.ask("first")
        await driver.ask("second")
        before = ["first", "One.", "second", "Two."]
        for what, line, after in (
            ("reply", "the context is full", ["first", "One.", "second", "shortNew."]),
            ("1", "Not sent", ["short", "New."]),
        ):
            driver.prompt.show_text("a draft")
            driver.chat.editing.action_edit(what)
            await driver.until(lambda: driver.chat.editing.is_active)
            driver.prompt.show_text(long)
            await driver.pilot.press("enter")
            await driver.note(line)
            await driver.until(lambda: driver.prompt.text == long, "the text is back")
            assert driver.chat.editing.is_active
            assert [m.text for m in driver.chat.core.chat_session.conversation.messages] == before
            assert [view.text for view in driver.transcript.messages()] == before
            driver.prompt.show_text("short")
            await driver.pilot.press("enter")
            await driver.until(
                lambda: (
                    not driver.chat.core.chat_session.is_busy and not driver.chat.editing.is_active
                )
            )
            assert [m.text for m in driver.chat.core.chat_session.conversation.messages] == after
            assert driver.prompt.text == "a draft"
            before = after


async def test_what_a_key_on_an_old_message_leads_to_is_said_in_sight():
    script = Script(replies=[tokens("word\n\n" * 20)])
    async with chatting(script) as driver:
        await driver.ask("first")
        script.token_gate = Gate()
        await driver.say("second")
        await driver.until(script.token_gate.waiting.is_set)
        await driver.pilot.press(*["ctrl+up"] * 3)
        await driver.until(lambda: driver.app.focused is driver.transcript.messages()[0])
        await driver.until(
            lambda: "first" in driver.screen_text() and "second" not in driver.screen_text()
        )
        await driver.pilot.press("e")
        await driver.shows("the engine is busy: Esc stops it")
        await driver.pilot.press("ctrl+down")
        await driver.shows("y copy")


async def test_a_stopped_reply_is_edited_and_goes_on_from_the_new_text():
    script = Script(replies=[tokens("one two three four five six"), tokens(" vier fünf")])
    async with chatting(script, size=(100, 30)) as driver:
        partial = await stop_after(driver, 3)
        await driver.until(lambda: driver.app.focused is partial)
        await driver.shows("e edit")
        await driver.pilot.press("e")
        await driver.until(lambda: driver.prompt.text == "one two three")
        price = "editing reply 1 · keeps 1 token in another branch ·"
        await driver.shows(price)
        await driver.shows("Enter send · Esc cancel")
        driver.prompt.show_text("one two drei ")
        await driver.shows("keeps 1 token in another branch ·")
        await driver.pilot.press("enter")
        await driver.until(lambda: driver.transcript.replies()[-1] is not partial)
        whole = await driver.last_reply()
        assert whole.text == "one two drei  vier fünf"
        assert whole.footer.endswith(" · edited by you")
        messages = driver.chat.core.chat_session.conversation.messages
        assert [m.text for m in messages] == ["count", "one two drei  vier fünf"]
        assert [view.text for view in driver.transcript.messages()] == [
            "count",
            "one two drei  vier fünf",
        ]
        await driver.hides("editing")


async def test_a_finished_reply_is_edited_or_kept_if_stopped_at_once():
    script = Script(replies=[tokens("One."), tokens("Two."), tokens(" And more."), tokens(" End.")])
    async with chatting(script, size=(100, 30)) as driver:
        await driver.ask("first")
        await driver.ask("second")
        await driver.pilot.press("ctrl+up", "ctrl+up", "ctrl+up")
        assert driver.app.focused.text == "One."
        await driver.pilot.press("e")
        await driver.until(lambda: driver.prompt.text == "One.")
        assert [view.has_class("-replaced") for view in driver.transcript.messages()] == [
            False,
            True,
            True,
            True,
        ]
        driver.prompt.show_text("/Eins.")  # of a reply nothing is a command
        await driver.pilot.press("enter")
        text = "/Eins. And more."
        await driver.until(
            lambda: [view.text for view in driver.transcript.messages()] == ["first", text]
        )
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        await driver.say("/edit reply")
        await driver.until(lambda: driver.prompt.text == text)
        driver.script.prefill_gate = gate = Gate()
        driver.prompt.show_text("Drei.")
        await driver.pilot.press("enter")
        await driver.until(gate.waiting.is_set)
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.prompt.text == "Drei.", "the text is back")
        assert driver.chat.editing.is_of_reply
        assert driver.chat.core.chat_session.conversation.messages[-1].text == text
        gate.open()
        await driver.pilot.press("enter")
        await driver.until(
            lambda: driver.chat.core.chat_session.conversation.messages[-1].text == "Drei. End."
        )
        assert driver.chat.core.chat_session.conversation.messages[-1].is_edited


# Thinking


THOUGHT = ["<think>", "\n", "# not a heading ", "so ", "**hm**", "</think>", "\n\n", "Forty-two."]


async def test_thinking_is_shown_live_folds_and_is_not_copied(terminal_clipboard: None, tmp_path):
    script = Script(replies=[["<think>", "\n\n", "</think>", "\n\n", "Yes"], THOUGHT])
    async with chatting(script) as driver:
        assert (await driver.ask("is it?")).text == "Yes"
        await driver.hides("thought")  # an empty block is none
        await driver.say("/think")
        await driver.note("there is no thinking in the last reply")
        script.token_gate = Gate()
        await driver.say("why")
        script.token_gate.allow(5)
        await driver.shows("# not a heading so **hm**")
        await driver.shows("thinking")
        script.token_gate.open()
        await driver.until(lambda: len(driver.chat.core.chat_session.conversation.messages) == 4)
        reply = await driver.last_reply()
        assert reply.text == "Forty-two."
        await driver.shows("+ thought for 3.0 s · 6 tokens")
        await driver.hides("heading")
        await driver.pilot.press("ctrl+up", "t")
        await driver.shows("# not a heading so **hm**")
        await driver.say("/think")
        await driver.hides("heading")
        await driver.say("/copy")
        await driver.until(lambda: driver.app.clipboard == "Forty-two.")
        await driver.say("/copy thinking")
        await driver.until(lambda: driver.app.clipboard == "# not a heading so **hm**")
        await driver.say(f"/save {tmp_path / 'a.md'}")
        await driver.note("a.md")
        assert "heading" not in (tmp_path / "a.md").read_text(encoding="utf-8")
        await driver.say(f"/save {tmp_path / 'b.md'} +thinking")
        await driver.note("b.md")
        saved = (tmp_path / "b.md").read_text(encoding="utf-8")
        assert "> # not a heading so **hm**" in saved
        assert "*thought for 3.0 s · 6 tokens*" in saved


async def test_how_much_the_model_thinks_is_chosen_and_shown():
    async with chatting() as driver:
        await driver.say("/think loud")
        await driver.note("'loud' is not a way to think")
        await driver.say("/think off")
        await driver.note("thinking off from the next message on")
        await driver.shows("model · Q4_K_M · thinking off")
        await driver.pilot.press("f2")
        await driver.shows("2 threads · thinking off")
        await driver.pilot.press("escape")
        await driver.say("/think auto")
        await driver.note("thinking is left to the model from the next message on")
        await driver.hides("Q4_K_M · thinking")


async def test_a_reply_stopped_while_thinking_goes_on_or_is_edited():
    async with chatting(Script(replies=[THOUGHT])) as driver:
        partial = await stop_after(driver, 4, "why")
        await driver.shows("+ thought for 2.0 s · 4 tokens · not finished")
        assert partial.footer.startswith("(no answer yet)")
        await driver.until(lambda: driver.app.focused is partial)
        await driver.pilot.press("c")
        await driver.until(lambda: driver.transcript.replies()[-1].text == "Forty-two.")
        await driver.shows("s · 6 tokens")
        thinking = driver.chat.core.chat_session.conversation.messages[-1].thinking
        assert (thinking.text, thinking.tokens, thinking.is_closed) == (
            "# not a heading so **hm**",
            6,
            True,
        )
        driver.script.replies = [THOUGHT, [" then", "</think>", "Done."]]
        partial = await stop_after(driver, 4, "why")
        await driver.until(lambda: driver.app.focused is partial)
        await driver.pilot.press("e")
        await driver.until(lambda: driver.prompt.text == "# not a heading so ")
        driver.prompt.show_text("# not a thought")
        await driver.pilot.press("enter")
        await driver.until(lambda: driver.transcript.replies()[-1].text == "Done.")
        await driver.last_reply()
        thinking = driver.chat.core.chat_session.conversation.messages[-1].thinking
        assert (thinking.text, thinking.is_closed) == ("# not a thought then", True)


async def test_escape_has_one_meaning_at_a_time() -> None:
    script = Script(replies=[[f"word{n} " for n in range(40)]], token_gate=Gate())
    async with chatting(script) as driver:
        gate = script.token_gate
        assert gate is not None
        await driver.say("count")
        gate.allow(9)
        await driver.until(gate.waiting.is_set)
        await driver.shows("Esc stops the reply")
        await driver.pilot.press("ctrl+up")
        await driver.shows("Esc back")
        await driver.hides("Esc stops the reply")
        await driver.pilot.press("escape")
        await driver.shows("Esc stops the reply")
        await driver.hides("Esc back")
        await driver.pilot.press("escape")
        gate.open()
        await driver.shows("stopped")
