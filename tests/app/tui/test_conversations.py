"""The real chat over the scripted engine: what is said is there after a restart, however the first
run ended."""

import dataclasses
import errno
import fcntl
import json
import os
import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from textual import events

from app.conversations.conversation import MAX_TEXT_BYTES, Conversation, Ending
from app.conversations.database import NAME
from app.conversations.export import to_markdown
from app.conversations.journal import Journal
from app.conversations.locks import StoreError
from app.conversations.mark_rows import Marks
from app.conversations.store import OpenConversation, Store, model_key
from app.documents.passages import FileText
from app.program import paths
from app.tui.chat.draft import Draft
from app.tui.chat.history import write_draft
from app.tui.chat.unsent_drafts import store_drafts, take_stored_drafts
from app.tui.screens.conversations import ConversationsScreen
from app.tui.screens.question import OpenConversationScreen
from engine.errors import BrokenModelError
from tests.app.chat_driver import Driver, chatting
from tests.app.conversations.talk import FIGURES, PATIENCE_S
from tests.app.fake_engine import Gate, Script

pytestmark = pytest.mark.slow


def tokens(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def texts(driver: Driver) -> list[str]:
    return [message.text for message in driver.chat.core.chat_session.conversation.messages]


def said(*messages: str, model: str = "model.gguf") -> None:
    """Save a conversation of an earlier start: questions and answers in turn."""
    made = Journal(Store())
    conversation = Conversation()
    made.set_model("model", model_key(model))
    for number, text in enumerate(messages):
        if number % 2:
            conversation.add_reply(text, Ending.COMPLETE, FIGURES)
            made.save_turn_end(conversation)
        else:
            conversation.add_user(text)
            made.save_question(conversation, is_replacing=False)
    assert made.close(PATIENCE_S) == ""


async def saved(driver: Driver) -> None:
    await driver.until(
        lambda: driver.chat.core.chat_session.journal.wait_until_saved(0), "everything is saved"
    )


async def hold_reply(driver: Driver, question: str, n_tokens: int) -> None:
    gate = driver.script.token_gate
    assert gate is not None
    await driver.say(question)
    gate.allow(n_tokens)
    await driver.until(gate.waiting.is_set, "the reply is held")
    await driver.until(lambda: driver.transcript.replies(), "it is on the screen")


async def test_a_restart_goes_on_with_the_conversation():
    async with chatting(Script(replies=[tokens("One."), tokens("**Two.**")])) as driver:
        await driver.ask("first?")
        await driver.ask("second?")
    async with chatting(Script(replies=[tokens("Three.")])) as driver:
        assert texts(driver) == ["first?", "One.", "second?", "**Two.**"]
        for text in ("first?", "One.", " Two.", 'Continuing "first?" (today '):
            await driver.until(lambda text=text: text in driver.screen_text(), text)
        await driver.ask("third?")
        assert texts(driver)[-1] == "Three."
        asked = driver.script.opened[0].sessions[0].tokens
        assert (
            driver.script.opened[0]
            .tokenizer.decode(asked)
            .startswith("first?One.second?**Two.**third?")
        )
    assert len(Store().ids()) == 1


async def test_a_kill_in_the_middle_of_a_reply_keeps_what_was_flushed(tmp_path):
    script = Script(replies=[tokens("one two three four five six")], token_gate=Gate())
    async with chatting(script) as driver:
        await hold_reply(driver, "count", 4)
        driver.chat.upkeep.save()
        await driver.until(lambda: len(Store().read("000001").conversation.messages) == 2)
        _copy_of_the_disk(tmp_path / "killed")
    _as_it_was(tmp_path / "killed")
    async with chatting(Script(replies=[tokens("one two three four five six")])) as driver:
        question, reply = driver.chat.core.chat_session.conversation.messages
        assert question.text == "count"
        assert reply.ending is Ending.INTERRUPTED
        assert "one two three four".startswith(reply.text)
        assert len(reply.text) >= len("one two three")
        await driver.shows("/continue resumes")
        await driver.say("/continue")
        await driver.until(
            lambda: (
                not driver.chat.core.chat_session.can_continue
                and not driver.chat.core.chat_session.is_busy
            )
        )
        assert texts(driver)[0] == "count"


async def test_a_message_a_kill_left_unanswered_goes_with_the_next(tmp_path):
    script = Script(prefill_gate=Gate())
    async with chatting(script) as driver:
        await driver.say("why?")
        await driver.until(script.prefill_gate.waiting.is_set)
        await saved(driver)
        _copy_of_the_disk(tmp_path / "killed")
    _as_it_was(tmp_path / "killed")
    async with chatting(Script(replies=[tokens("So."), tokens("Then.")])) as driver:
        await driver.note(
            "The last message has no reply. /regen answers it; another message is sent with it"
        )
        await driver.ask("and how?")
        await driver.note("the message before was not answered: both are sent together")
        assert texts(driver) == ["why?\n\nand how?", "So."]
        await driver.shows("sent with the next message")
        await driver.ask("and when?")
        asked = driver.script.opened[0].sessions[0].tokens
        assert (
            driver.script.opened[0].tokenizer.decode(asked) == "why?\n\nand how?So.and when?Then."
        )
        await driver.say("/edit 1")
        await driver.until(lambda: driver.prompt.text == "why?\n\nand how?")
    assert Store().read("000001").conversation.messages[0].text == "why?\n\nand how?"


async def test_an_unanswered_message_stays_if_the_next_is_too_long():
    said("why?")
    async with chatting(Script(n_ctx=60)) as driver:
        await driver.say("word " * 70)
        await driver.note("Not sent: with room for a reply, this message alone")
        assert texts(driver) == ["why?"]
        assert driver.prompt.text.split() == ["word"] * 70
        await saved(driver)
        assert [m.text for m in Store().read("000001").conversation.messages] == ["why?"]
        driver.prompt.show_text("")
        await driver.ask("and how?")
        assert texts(driver) == ["why?\n\nand how?", "Hello there."]


def _copy_of_the_disk(to: Path) -> None:
    root = paths.conversations_dir()
    assert root is not None
    # In another process: whoever closes a database's file in this one lets go of SQLite's locks.
    # The daily copy's temporary file may vanish meanwhile, which is not an error here.
    subprocess.run(["cp", "-r", root, to], check=False, stderr=subprocess.DEVNULL)
    assert (to / "conversations.db").exists() or list(to.rglob("conversations.db"))


def _as_it_was(copy: Path) -> None:
    """The files as a kill at the moment of the copy would have left them."""
    root = paths.conversations_dir()
    assert root is not None
    shutil.rmtree(root)
    shutil.copytree(copy, root)


@pytest.mark.parametrize("is_first", [True, False])
async def test_messages_that_wait_for_a_model_survive_a_kill(tmp_path, is_first):
    if not is_first:
        said("before", "Hello there.")
    gate = Gate()
    n_before = 0 if is_first else 2
    async with chatting(Script(open_gate=gate), wait=False) as driver:
        await driver.until(lambda: driver.chat.core.chat_session.is_loading)
        await driver.say("first of all")
        await driver.say("and then")
        assert len(driver.chat.core.chat_session.queued_texts) == 2
        await saved(driver)
        _copy_of_the_disk(tmp_path / "killed")
        gate.open()
        await driver.until(lambda: len(texts(driver)) == n_before + 4)
    conversation = Store().read("000001")
    assert [m.text for m in conversation.conversation.messages][n_before::2] == [
        "first of all",
        "and then",
    ]
    assert conversation.queued_texts == []
    _as_it_was(tmp_path / "killed")
    async with chatting() as driver:
        await driver.note(
            "A queued message was not sent before Jalopy closed; it is back in the prompt."
        )
        assert len(texts(driver)) == n_before
        assert driver.prompt.text == "first of all\n\nand then"
        await driver.ask("first of all\n\nand then")
        await driver.say("/new")
        await driver.note("New conversation")
    saved_one = Store().read("000001")
    assert saved_one.conversation.messages[n_before].text == "first of all\n\nand then"
    assert saved_one.queued_texts == []
    assert Store().ids() == ["000001"]


async def test_what_is_taken_back_leaves_nothing_on_the_disk():
    async with chatting(Script(open_gate=Gate()), wait=False) as driver:
        await driver.until(lambda: driver.chat.core.chat_session.is_loading)
        await driver.say("no, wait")
        await saved(driver)
        assert Store().read("000001").queued_texts == ["no, wait"]
        driver.prompt.show_text("")
        await driver.pilot.press("up")
        await driver.until(lambda: driver.prompt.text == "no, wait")
        await saved(driver)
        assert Store().read("000001").queued_texts == []
    assert Store().ids() == []


@pytest.mark.smoke
async def test_a_message_for_another_model_goes_to_its_conversation():
    script = Script()
    async with chatting(script, model="one.gguf") as driver:
        await driver.ask("to one")
        script.open_gate = Gate()
        await driver.until(lambda: driver.chat.core.chat_session.load(Path("two.gguf")))
        await driver.say("to two")
        await saved(driver)
        assert Store().read("000001").queued_texts == ["to two"]
        script.open_gate.open()
        await driver.until(lambda: texts(driver)[:1] == ["to two"] and len(texts(driver)) == 2)
        await saved(driver)
    assert Store().read("000001").queued_texts == Store().read("000002").queued_texts == []
    assert [Store().read(one).conversation.messages[0].text for one in Store().ids()] == [
        "to one",
        "to two",
    ]


async def test_a_message_too_long_to_be_saved_returns_to_the_prompt():
    text = "\N{PISTOL}" * (MAX_TEXT_BYTES // 12 + 1)
    async with chatting() as driver:
        await driver.ask("hello")
        for n, edit in enumerate(("", "1", "reply"), 1):
            if edit:
                driver.chat.editing.action_edit(edit)
                await driver.until(lambda: driver.chat.editing.is_active)
            driver.prompt.show_text("")
            driver.prompt.attach([FileText("long.txt", text, text)])
            await driver.pilot.press("enter")
            await driver.until(
                lambda n=n: driver.notes().count("Not sent: the message is too long.") == n
            )
            assert "long.txt" in driver.prompt.text
            assert text in driver.prompt.draft.text
            assert driver.chat.editing.is_active == bool(edit)
            assert texts(driver) == ["hello", "Hello there."]
        driver.chat.editing.cancel()
        driver.prompt.show_text("/system ")
        driver.prompt.post_message(events.Paste(text))
        await driver.until(lambda: "pasted" in driver.prompt.text)
        await driver.pilot.press("enter")
        await driver.until(lambda: sum("not sent" in note.lower() for note in driver.notes()) == 4)
    assert [message.text for message in Store().read("000001").conversation.messages] == [
        "hello",
        "Hello there.",
    ]


async def test_new_keeps_the_old_and_the_next_start_opens_the_newest():
    said("old", "Yes.")
    async with chatting() as driver:
        await driver.say("/new")
        await driver.note("New conversation. Earlier ones: F8")
        await driver.ask("fresh")
    async with chatting() as driver:
        assert texts(driver)[0] == "fresh"
        await driver.pilot.press("f8")
        await driver.until(
            lambda: "old" in driver.screen_text() and "fresh" in driver.screen_text()
        )
    async with chatting(resume="new") as driver:  # or a start begins again
        assert texts(driver) == []
        await driver.ask("another")
    assert len(Store().ids()) == 3


async def test_enter_in_an_empty_prompt_opens_the_last_one():
    said("first?", "One.")
    async with chatting(
        Script(replies=[tokens("Two."), tokens("Three.")]), resume="offer"
    ) as driver:
        welcome = await driver.note('Enter  continues "first?" (today ')
        assert re.match(r"model · Q4_K_M\n\S+ model · room for 512 tokens \(\S+\)\n", welcome)
        assert texts(driver) == []
        await driver.pilot.press("enter")
        await driver.note('Continuing "first?" (today ')
        assert texts(driver) == ["first?", "One."]
        await driver.ask("second?")
        await driver.say("/new")
        await driver.note("New conversation")
        await driver.pilot.press("enter", *"third?", "enter", "enter")
        await driver.last_reply()
        assert texts(driver) == ["third?", "Three."]
        await saved(driver)
    assert len(Store().ids()) == 2
    script = Script(replies=[tokens("Four.")], prefill_gate=Gate())
    async with chatting(script, resume="offer") as driver:
        await driver.note("Enter  continues")
        # it is offered no more once something is said
        await driver.pilot.press(*"again?", "enter", "enter")
        await driver.until(script.prefill_gate.waiting.is_set)
        script.prefill_gate.open()
        await driver.last_reply()
        assert texts(driver) == ["again?", "Four."]
        notes = driver.notes()
        assert any("asks about a file" in note for note in notes)
        assert not any("continues" in note for note in notes)


async def test_words_that_were_not_sent_bring_their_conversation_along():
    said("why?")
    file = paths.unsent_file()
    assert file is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(write_draft(Draft("and how?")))
    async with chatting(resume="offer") as driver:
        await driver.until(lambda: driver.prompt.text == "and how?")
        assert texts(driver) == ["why?"]


@pytest.mark.parametrize(("model", "shown"), [("model.gguf", ["old", "Yes."]), ("other.gguf", [])])
async def test_a_draft_opens_the_conversation_it_was_typed_in(model, shown):
    said("old", "Yes.")
    said("new", "No.")
    said("of another", "So.", model="other.gguf")
    store_drafts([Draft("and?")], "000001")
    async with chatting(model=model, resume="offer") as driver:
        await driver.until(lambda: driver.prompt.text == "and?")
        await driver.until(lambda: texts(driver) == shown)


async def test_every_model_has_its_own_last_conversation():
    said("to one", "One.", model="one.gguf")
    async with chatting(model="two.gguf") as driver:
        assert texts(driver) == []
        await driver.ask("to two")
    async with chatting(model="one.gguf") as driver:
        assert texts(driver)[0] == "to one"


async def test_a_regenerated_reply_is_on_disk_only_when_it_begins():
    script = Script(replies=[tokens("First answer."), tokens("Another one.")])
    async with chatting(script) as driver:
        await driver.ask("why?")
        script.prefill_gate = Gate()
        await driver.say("/regen")
        await driver.until(script.prefill_gate.waiting.is_set)
        await driver.until(lambda: driver.chat.core.chat_session.is_answering)
        driver.chat.upkeep.save()
        await saved(driver)
        assert [m.text for m in Store().read("000001").conversation.messages] == [
            "why?",
            "First answer.",
        ]
        script.prefill_gate.open()
        await driver.until(lambda: texts(driver) == ["why?", "Another one."])
        await saved(driver)
        assert [m.text for m in Store().read("000001").conversation.messages] == [
            "why?",
            "Another one.",
        ]


async def test_an_edit_not_answered_at_a_kill_returns_to_the_prompt(tmp_path):
    script = Script(replies=[tokens("First answer."), tokens("Another one.")])
    async with chatting(script) as driver:
        await driver.ask("why?")
        script.prefill_gate = Gate()
        await driver.say("/edit")
        await driver.until(lambda: driver.chat.editing.is_active)
        await driver.say("why not?")
        await driver.until(script.prefill_gate.waiting.is_set)
        await driver.until(lambda: Store().read("000001").unanswered_replacement == "why not?")
        _copy_of_the_disk(tmp_path / "killed")
        script.prefill_gate.open()
    _as_it_was(tmp_path / "killed")
    async with chatting() as driver:
        assert texts(driver) == ["why?", "First answer."]
        assert driver.prompt.text == "why not?"


async def test_a_failed_reply_is_kept_and_nothing_before_words():
    script = Script(
        replies=[tokens("one two three")],
        fail_after_tokens=2,
        generate_error=BrokenModelError("broken"),
    )
    async with chatting(script) as driver:
        await driver.say("/system Be brief.")
        await driver.note("system prompt: Be brief.")
        await saved(driver)
        assert not Store().root.exists()
        await driver.say("count")
        await driver.note("broken")
    message = Store().read("000001").conversation.messages[-1]
    assert (message.text, message.ending) == ("one two", Ending.FAILED)


async def test_a_full_disk_is_told_once_and_at_the_end(monkeypatch):
    def full(*_: object) -> int:
        raise StoreError("the disk is full")

    async with chatting() as driver:
        monkeypatch.setattr(OpenConversation, "apply", full)
        await driver.ask("first")
        for _ in range(3):
            driver.chat.upkeep.save()
        await driver.until(lambda: driver.chat.core.chat_session.journal.trouble)
        for _ in range(3):
            driver.chat.upkeep.save()
        await driver.note("conversation not saved: the disk is full")
        assert sum("not saved" in note for note in driver.notes()) == 1
    assert driver.app.unsaved == "the disk is full"


async def test_files_that_cannot_be_locked_are_told_once(monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    async with chatting() as driver:
        for question in ("first", "second"):
            await driver.ask(question)
            await saved(driver)
            driver.chat.upkeep.save()
        await driver.note("Files cannot be locked where conversations are saved")
        assert sum("locked" in note for note in driver.notes()) == 1
        await driver.say("/new")
        await driver.note("New conversation")
        await driver.ask("third")
        await saved(driver)
        driver.chat.upkeep.save()
        await driver.pilot.pause()
        assert not any("locked" in note for note in driver.notes())
    assert Store().ids() == ["000001", "000002"]


async def test_a_second_instance_goes_on_with_a_copy():
    async with chatting() as first:
        await first.ask("shared")
        await saved(first)
        async with chatting() as second:
            note = await second.note("this is a copy")
            assert f"in use by another jalopy (process {os.getpid()}, since " in note
            assert texts(second)[0] == "shared"
            await second.ask("mine alone")
        await first.ask("and mine")
    store = Store()
    assert [
        [m.text for m in store.read(one).conversation.messages if m.role == "user"]
        for one in store.ids()
    ] == [
        ["shared", "and mine"],
        ["shared", "mine alone"],
    ]
    assert store.read("000002").forked_from == "000001"


async def test_a_fork_keeps_the_cache_and_the_original():
    script = Script(replies=[tokens("One."), tokens("Two."), tokens("Other.")])
    async with chatting(script) as driver:
        await driver.ask("first?")
        await driver.ask("second?")
        await driver.pilot.press("ctrl+up", "ctrl+up", "ctrl+up", "f")
        await driver.until(lambda: texts(driver) == ["first?", "One."])
        reply = await driver.ask("instead?")
        assert "cached" in reply.details
        assert reply.message is not None
        assert reply.message.figures is not None
        assert reply.message.figures.reused_tokens >= 5
        assert texts(driver) == ["first?", "One.", "instead?", "Other."]
    store = Store()
    assert len(store.read("000001").conversation.messages) == 4
    assert [m.text for m in store.read("000002").conversation.messages] == [
        "first?",
        "One.",
        "instead?",
        "Other.",
    ]


async def test_the_open_conversation_is_forked_and_deleted_by_commands():
    async with chatting() as driver:
        await driver.say("/delete")
        await driver.note("not saved, so there is nothing to delete")
        await driver.say("/fork")
        await driver.note("There is no reply to continue from yet")
        await driver.ask("first")
        await driver.say("/fork")
        await driver.note("This is a copy of the first 2 messages.")
        session = driver.chat.core.chat_session
        await driver.ask("second")
        await driver.until(lambda: session.journal.id, "the copy is saved")
        copy_id = session.journal.id
        await driver.say("/delete")
        await driver.note("and its cached reading? /delete yes deletes it")
        assert session.journal.id == copy_id
        await driver.say("/delete yes")
        await driver.note("The conversation is deleted. This is a new one.")
        assert session.conversation.is_empty
    store = Store()
    assert [int(entry.id) for entry in store.entries()] == [1]


async def test_a_command_says_how_full_the_context_is():
    async with chatting() as driver:
        await driver.ask("first")
        await driver.say("/tokens")
        assert "of 512 tokens are used" in await driver.note("Context: ")


async def test_conversations_need_not_be_kept_and_then_none_is_forked():
    async with chatting(
        Script(replies=[tokens("One.")], n_ctx=64), save_conversations="off"
    ) as driver:
        await driver.say("word " * 100)
        await driver.note("Not sent")
        await driver.pilot.press("ctrl+up", "f")
        await driver.note("this message is not part of the conversation")
        driver.prompt.show_text("")
        await driver.ask("first?")
        await driver.pilot.press("ctrl+up", "f")
        await driver.note(
            "Not copied: conversations are not saved, so the messages after this would be lost"
        )
        assert texts(driver) == ["first?", "One."]
        await driver.pilot.press("f2")
        await driver.until(lambda: driver.app.screen is not driver.chat)
        await driver.pilot.press("f8")
        await driver.shows("conversations are not saved")  # why not, in sight
    root = paths.conversations_dir()
    assert root is not None
    assert not root.exists()


async def test_f8_finds_opens_renames_deletes_exports_conversations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with chatting(
        Script(replies=[tokens("A zebra has stripes."), tokens("Blue.")])
    ) as driver:
        await driver.ask("animals")
        await driver.say("/new")
        await driver.note("New conversation")
        await driver.ask("colours")
        await saved(driver)
        await driver.pilot.press("f8")
        await driver.until(lambda: isinstance(driver.app.screen, ConversationsScreen))
        await driver.until(
            lambda: "animals" in driver.screen_text() and "colours" in driver.screen_text()
        )
        rows = driver.screen_text().splitlines()
        names = next(row for row in rows if "last used" in row)
        entry = next(row for row in rows if "animals" in row and "today" in row)
        assert names.index("conversation") == entry.index("animals")
        assert names.index("last used") == entry.index("today")
        await driver.pilot.press(*"zebra")
        await driver.until(
            lambda: (
                "colours" not in driver.screen_text()
                and "zebra has stripes" in driver.screen_text()
            )
        )
        await driver.pilot.press("ctrl+e", "ctrl+s", "ctrl+r", *" two", "enter")
        await driver.shows("animals two")
        exported = {path.suffix: path.read_text() for path in Path(tmp_path).glob("animals.*")}
        assert json.loads(exported[".json"])["messages"][1]["text"] == "A zebra has stripes."
        assert "tok/s" in exported[".md"]
        await driver.pilot.press("enter")
        await driver.until(lambda: texts(driver) == ["animals", "A zebra has stripes."])
        await driver.pilot.press("f8")
        await driver.shows("colours")
        await driver.pilot.press(*"colours")
        await driver.hides("animals")
        await driver.pilot.press("ctrl+d", "n", "ctrl+d")
        await driver.shows("Delete colours?")
        await driver.pilot.press("y")
        await driver.until(lambda: Store().ids() == ["000001"])
    assert Store().read("000001").title == "animals two"


async def test_f8_shows_the_last_exchange_in_half_of_a_wide_screen():
    said("why?", "Because.", "and the fan?", "It cools. " * 200)
    said("other", "Yes.")
    async with chatting(size=(120, 40), resume="new") as driver:
        await driver.pilot.press("f8")
        await driver.shows("2 conversations · ")
        await driver.shows("Today")
        await driver.pilot.press("down")
        await driver.shows("You: and the fan?")
        await driver.shows("model: It cools. It cools.")
        shown = driver.screen_text()
        assert shown.count("It cools.") > 100
        assert "number 1" in shown
        assert len("".join(shown.split())) > 0.25 * 120 * 40
        await driver.pilot.resize_terminal(80, 24)
        await driver.shows("number 1")
        assert "why?" in driver.screen_text()


async def test_f8_frees_the_state_of_a_conversation():
    said("why?", "Because.")
    said("how?", "So.")
    directory = paths.states_dir() / "kind"
    directory.mkdir(parents=True)
    own, other, common = (f"{0:032}-{n}-{n:032}.kv" for n in (1, 2, 3))
    for number, names in (("000001", (own, common)), ("000002", (other, common))):
        for name in names:
            (directory / name).write_bytes(bytes(2048))
            Store().add_segment(number, "kind", name)
    async with chatting(resume="new") as driver:
        await driver.pilot.press("f8")
        await driver.shows("Saved states take 6.0 KB of at most ")
        await driver.pilot.press("ctrl+f")
        await driver.shows("Freed 2.0 KB.")
        await driver.pilot.press("ctrl+f")
        await driver.shows("Nothing freed: other conversations need its saved state, too")
    assert {path.name for path in directory.iterdir()} == {own, common}
    assert len(Store().ids()) == 2


async def test_f8_pins_tags_and_filters_by_tag():
    for title in ("first", "second", "third"):
        said(title, "Yes.")
    async with chatting(resume="new") as driver:
        await driver.pilot.press("f8")
        await driver.until(lambda: isinstance(driver.app.screen, ConversationsScreen))
        screen = driver.app.screen
        await driver.until(lambda: len(screen.items()) == 3)
        await driver.pilot.press("down")
        marked_id = screen.highlighted().id
        await driver.pilot.press("ctrl+k")
        await driver.until(lambda: screen.items()[0].id == marked_id)
        await driver.shows("Pinned")
        assert screen.highlighted().id == marked_id
        await driver.pilot.press("ctrl+t", *"Work #home", "enter")
        await driver.shows("#home #work")
        assert Store().read(marked_id).marks == Marks(True, ("home", "work"))
        await driver.pilot.press(*"#wo")
        await driver.until(lambda: [hit.id for hit in screen.items()] == [marked_id])
        await driver.pilot.press("ctrl+t", "ctrl+u", *"home", "escape", "escape")
        await driver.until(lambda: len(screen.items()) == 3)
        assert Store().read(marked_id).marks.tags == ("home", "work")
        await driver.pilot.press("ctrl+k")
        await driver.until(lambda: not any(hit.is_pinned for hit in screen.items()))


async def listed(driver: Driver) -> ConversationsScreen:
    """The list of all conversations, with the cursor on the last but one, which is not the live
    one."""
    n_saved = len(Store().ids())
    await driver.pilot.press("f8")
    screen = driver.app.screen
    assert isinstance(screen, ConversationsScreen)
    await driver.until(lambda: len(screen.items()) == n_saved)
    await driver.pilot.press("down")
    await driver.until(lambda: screen.highlighted().id == f"{n_saved - 1:06}")
    return screen


async def test_only_the_row_asked_about_is_deleted_or_renamed():
    for title in ("first", "second", "third"):
        said(title, "Yes.")
    titles = {"000001": "first", "000002": "second", "000003": "third"}
    async with chatting() as driver:
        screen = await listed(driver)
        for ask, answer in (("ctrl+r", ("!", "enter")), ("ctrl+d", ("y",))):
            await driver.until(lambda: screen.highlighted().id == "000002")
            await driver.pilot.press(ask, *answer[:-1])
            # a search goes on
            first_only = tuple(hit for hit in screen.items() if hit.id == "000001")
            screen._result = dataclasses.replace(screen._result, hits=first_only)
            screen.show()
            assert screen.highlighted().id == "000001"
            if ask == "ctrl+d":
                await driver.shows("Delete second!?")
                del titles["000002"]
            else:
                titles["000002"] = "second!"
            await driver.pilot.press(answer[-1])
            await driver.until(
                lambda: {entry.id: entry.title for entry in Store().entries()} == titles
            )
            await driver.until(
                lambda: {hit.id for hit in screen.items()} == set(titles), "it is listed again"
            )
            await driver.pilot.press("up")


async def test_what_is_asked_and_written_survives_other_input():
    said("first", "Yes.")
    said("second", "Yes.")
    async with chatting(size=(40, 10)) as driver:  # low: only what must be seen is
        screen = await listed(driver)
        await driver.pilot.press("ctrl+r", "!")
        await driver.pilot.press("f1")
        await driver.until(lambda: driver.app.screen is not screen, "the help")
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is screen, "back")
        await driver.pilot.press("!")
        await driver.until(lambda: screen.new_text == "first!!", "it is written on")
        await driver.pilot.press("enter")
        await driver.until(lambda: Store().read("000001").title == "first!!")
        assert driver.app.screen is screen
        await driver.pilot.press("delete")
        await driver.shows("y deletes")
        driver.app.post_message(events.Paste("first"))  # no answer to a question
        await driver.until(lambda: screen.filter_text == "first")
        await driver.pilot.press("y")
        await driver.until(lambda: screen.filter_text == "firsty")
        assert Store().ids() == ["000001", "000002"]
        await driver.pilot.press("backspace")
        await driver.until(lambda: screen.highlighted() is not None)
        await driver.pilot.press("delete", "y")
        await driver.until(lambda: Store().ids() == ["000002"], "it is deleted")


async def test_a_long_title_in_a_question_is_cut_between_words(tmp_path):
    writer = tmp_path / "writer.gguf"
    writer.write_bytes(bytes(2048))
    said("Write a story of 120 words about a lighthouse", "Once.", model=str(writer))
    async with chatting(Script()) as driver:
        await driver.pilot.press("f8")
        screen = driver.app.screen
        await driver.until(lambda: screen.items())
        await driver.pilot.press("enter")
        await driver.shows('…"?')
        await driver.hides("lig")


@pytest.mark.parametrize(("key", "name"), [("enter", "writer.gguf"), ("k", "model.gguf")])
async def test_f8_asks_which_model_continues_a_conversation(tmp_path, key, name):
    writer = tmp_path / "writer.gguf"
    writer.write_bytes(bytes(2048))
    said("why?", "Because.", model=str(writer))
    script = Script(replies=[tokens("So.")])
    async with chatting(script) as driver:
        await driver.pilot.press("f8")
        screen = driver.app.screen
        await driver.until(lambda: screen.items())
        await driver.pilot.press("enter")
        await driver.until(lambda: isinstance(driver.app.screen, OpenConversationScreen))
        await driver.shows('Which model continues "why?"?')
        await driver.shows("It loads 2.0K and reads about ")
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)
        assert texts(driver) == []
        await driver.chat.conversations.open("000001")
        await driver.until(lambda: isinstance(driver.app.screen, OpenConversationScreen))
        await driver.pilot.press(key)
        await driver.until(lambda: texts(driver) == ["why?", "Because."])
        await driver.ready()
        model = driver.chat.core.chat_session.model
        assert model is not None
        assert model.path.endswith(name)
        await driver.ask("and?")
        assert texts(driver) == ["why?", "Because.", "and?", "So."]
        assert len(driver.transcript.replies()) == 2


async def test_a_conversation_of_a_model_that_is_gone_says_so(tmp_path):
    said("why?", "Because.", model=str(tmp_path / "gone.gguf"))
    async with chatting() as driver:
        await driver.chat.conversations.open("000001")
        await driver.note("wrote it and is no longer here")
        assert texts(driver) == ["why?", "Because."]


async def test_the_live_conversation_is_deleted_but_in_no_reply():
    script = Script(replies=[tokens("one two three"), tokens("Two.")], token_gate=Gate())
    async with chatting(script, size=(120, 30)) as driver:
        await driver.say("/system Be brief.")
        await hold_reply(driver, "hello", 2)
        await saved(driver)
        await driver.pilot.press("f8")
        screen = driver.app.screen
        assert isinstance(screen, ConversationsScreen)
        await driver.until(lambda: screen.items())
        await driver.pilot.press("delete", "y")
        await driver.shows("Not deleted: the engine is busy")
        script.token_gate.open()
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        await saved(driver)
        await driver.pilot.press("delete", "n")
        assert Store().ids() == ["000001"]
        await driver.pilot.press("delete")
        await driver.until(
            lambda: (
                "Delete hello?" in driver.screen_text()
                and "starts a new one" in driver.screen_text()
            )
        )
        await driver.pilot.press("y")
        await driver.until(lambda: Store().ids() == [])
        await driver.until(lambda: not screen.items(), "the list is empty")
        await driver.pilot.press("escape")
        await driver.note("The conversation is deleted. This is a new one.")
        assert texts(driver) == []
        await driver.ask("again")
        asked = driver.script.opened[0].sessions[0].tokens
        assert driver.script.opened[0].tokenizer.decode(asked) == "Be brief.againTwo."
    assert [m.text for m in Store().read("000001").conversation.messages] == ["again", "Two."]


@pytest.mark.parametrize(("saving", "kept"), [("off", ["waits", "draft"]), ("on", ["draft"])])
async def test_a_queued_message_is_kept_apart_only_with_saving_off(saving, kept):
    script = Script(replies=[tokens("one two three")], token_gate=Gate())
    async with chatting(script, save_conversations=saving) as driver:
        await hold_reply(driver, "count", 2)
        await driver.say("waits")
        await driver.until(lambda: driver.chat.core.chat_session.queued_texts == ["waits"])
        driver.prompt.show_text("draft")
        assert "at the next start" in driver.chat.composer.save_drafts(60.0)
        assert [draft.text for draft in take_stored_drafts().drafts] == kept
        script.token_gate.open()


async def test_a_long_conversation_mounts_only_its_end():
    said(*(f"{side} {number}" for number in range(30) for side in ("question", "Answer")))
    async with chatting(Script(n_ctx=2000)) as driver:
        await driver.until(
            lambda: (
                "earlier messages" in driver.screen_text() or len(driver.transcript.messages()) < 30
            )
        )
        assert len(driver.transcript.messages()) < 30
        assert len(texts(driver)) == 60


def test_fields_of_messages_are_all_saved():
    """A new field of a message must be thought of here too."""
    from app.conversations.conversation import ChatMessage

    names = {field.name for field in dataclasses.fields(ChatMessage)}
    # known from the question, or from the references in its text
    names -= {"sources", "pictures"}
    of_tools = {"calls", "calls_at", "results"}
    assert names == of_tools | {
        "role", "text", "ending", "figures", "thinking", "is_edited", "folded", "ids", "raw",
        "is_missing", "alternatives", "n_older",
        "server_fields", "model",
    }  # fmt: skip


async def test_a_damaged_conversation_shows_its_gap_and_goes_on():
    said("first?", "One.", "second?", "Two.", "third?", "Three.")
    with closing(sqlite3.connect(Store().root / NAME)) as db, db:
        db.execute("DELETE FROM message WHERE place=2")
    async with chatting(Script(replies=[tokens("Four.")]), size=(80, 50)) as driver:
        await driver.note("1 message is missing (damaged); the model continues after the last one")
        await driver.shows("(missing: the file is damaged here)")
        assert texts(driver) == ["first?", "One.", "", "Two.", "third?", "Three."]
        await driver.say("/edit 2")
        await driver.note("the model no longer sees this message")
        await driver.ask("fourth?")
        asked = driver.script.opened[0].sessions[0].tokens
        assert (
            driver.script.opened[0].tokenizer.decode(asked).startswith("third?Three.fourth?Four.")
        )
    assert (
        to_markdown(Store().read("000001").conversation, "", datetime.now()).count("(missing: ")
        == 1
    )
