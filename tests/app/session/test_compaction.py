"""Summaries that the model writes of the oldest turns, and then reads in their place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.conversations.conversation import ChatMessage, Conversation, Role
from app.conversations.journal import Journal
from app.conversations.store import Store
from app.program.refusals import Refusal
from app.session import events
from app.session.chat_session import Admission, ChatSession
from app.session.compaction import n_to_replace, quotes_of
from app.session.context_parts import describe_context, parts_of
from engine import Sampling
from tests.app.backend.engine_driver import PATIENCE_S, Engine
from tests.app.fake_engine import Gate, Script

LONG = " ".join(["word"] * 120)
WORDS = ["word", *[" word"] * 119]
SUMMARY = ["A", " summary", " of", " it."]


@pytest.fixture
def engine() -> Iterator[Engine]:
    script = Script(n_ctx=4096)
    engine = Engine(script, sampling=lambda chosen, model, mode: Sampling())
    yield engine
    engine.close()


def fill(engine: Engine, n_turns: int) -> None:
    """Let the model write long answers."""
    engine.script.replies = [*[[*WORDS, f" {n}."] for n in range(n_turns)], SUMMARY, ["Then."]]
    engine.load()
    for n in range(n_turns):
        engine.ask(f"question {n}")


def compact(engine: Engine) -> events.Event:
    """Summarize, and return the event at the end."""
    shown: list[events.Event] = []
    assert engine.chat_session.summaries.begin()

    def is_over() -> bool:
        for event in engine.engine_thread.drain():
            outcome = engine.chat_session.handle(event)
            shown.extend(outcome.shown_events or ())
        return bool(shown) and not engine.chat_session.is_busy

    engine.until(is_over)
    return shown[-1]


def prompt_of(engine: Engine) -> str:
    session = engine.session
    return engine.script.opened[-1].tokenizer.decode(session.tokens)


def test_a_summary_takes_the_place_of_the_oldest_turns(engine: Engine) -> None:
    fill(engine, 4)
    conversation = engine.chat_session.conversation
    messages = list(conversation.messages)
    event = compact(engine)
    assert isinstance(event, events.ConversationCompacted)
    assert event.n_messages == conversation.n_dropped == 6
    assert conversation.messages == messages, "their text stays"
    summary = conversation.summary
    assert summary is not None
    assert summary.text.startswith("A summary of it.")
    assert '- "question 0"' in summary.text
    # The summary and the last turn are read at once; the next turn reads only the new.
    assert "A summary of it." in prompt_of(engine)
    n_read = len(engine.session.tokens)
    engine.ask("next")
    assert engine.engine_thread.status.meter.read_tokens < 20
    assert "question 3" in prompt_of(engine)
    assert f"{LONG} 0." not in prompt_of(engine)
    assert n_read < len(engine.session.tokens)


def test_the_summary_can_be_removed_again(engine: Engine) -> None:
    fill(engine, 4)
    compact(engine)
    assert engine.chat_session.summaries.remove()
    conversation = engine.chat_session.conversation
    assert conversation.summary is None
    assert conversation.n_dropped == 0
    engine.ask("next")
    assert "A summary of it." not in prompt_of(engine)
    with pytest.raises(Refusal, match="nothing is summarized"):
        engine.chat_session.summaries.remove()


def test_a_second_summary_replaces_the_first_and_more(engine: Engine) -> None:
    fill(engine, 4)
    compact(engine)
    engine.script.replies = [[*WORDS, f" {n}."] for n in range(4)] + [["Both."]]
    for n in range(4):
        engine.ask(f"later {n}")
    compact(engine)
    conversation = engine.chat_session.conversation
    first, second = conversation.summaries
    assert second.n_messages > first.n_messages
    assert second.n_dropped_before == first.n_messages
    assert second.text.startswith("Both.")
    assert '- "question 0"' in second.text
    engine.chat_session.summaries.remove()
    assert conversation.summary == first
    assert conversation.n_dropped == first.n_messages


def test_a_stop_leaves_everything_as_it_was(engine: Engine) -> None:
    fill(engine, 4)
    engine.script.token_gate = gate = Gate()
    gate.allow(1)
    chat_session = engine.chat_session
    chat_session.summaries.begin()
    assert gate.waiting.wait(PATIENCE_S)
    assert chat_session.submit("queued") is Admission.QUEUED
    chat_session.stop()
    shown: list[events.Event] = []

    def is_free() -> bool:
        for event in engine.engine_thread.drain():
            shown.extend(chat_session.handle(event).shown_events or ())
        return not chat_session.is_busy

    engine.until(is_free)
    assert shown == [events.CompactionEnded()]
    assert chat_session.conversation.summary is None
    assert chat_session.conversation.n_dropped == 0
    gate.open()
    assert chat_session.send_next()
    engine.wait_for(events.GenerationFinished)


def test_a_message_ends_a_summary_of_idle_time(engine: Engine) -> None:
    fill(engine, 4)
    engine.script.token_gate = gate = Gate()
    gate.allow(1)
    chat_session = engine.chat_session
    chat_session.summaries.begin(is_automatic=True)
    assert gate.waiting.wait(PATIENCE_S)
    assert chat_session.submit("something new") is Admission.QUEUED

    def is_free() -> bool:
        engine.drain()
        return not chat_session.is_busy

    engine.until(is_free)
    assert chat_session.conversation.summary is None
    gate.open()
    assert chat_session.send_next()
    engine.wait_for(events.GenerationFinished)


def test_an_empty_summary_changes_nothing(engine: Engine) -> None:
    fill(engine, 4)
    engine.script.replies = [[]]
    event = compact(engine)
    assert event == events.CompactionEnded("the model wrote no summary")
    assert engine.chat_session.conversation.n_dropped == 0


def test_a_short_conversation_is_not_summarized(engine: Engine) -> None:
    engine.load()
    engine.ask("hello")
    with pytest.raises(Refusal, match="nothing to summarize yet"):
        engine.chat_session.summaries.begin()
    assert not engine.chat_session.is_busy


def test_a_summary_is_saved_and_served_at_the_next_start(engine: Engine, tmp_path: Path) -> None:
    store = Store(tmp_path)
    engine.chat_session = chat_session = ChatSession(engine.engine_thread, None, Journal(store))
    fill(engine, 4)
    compact(engine)
    assert chat_session.journal.wait_until_saved(PATIENCE_S)
    saved = store.read(chat_session.journal.id).conversation
    assert saved.summaries == chat_session.conversation.summaries
    assert saved.n_dropped == 6
    assert len(saved.messages) == 8
    assert saved.prompt_messages() == chat_session.conversation.prompt_messages()
    assert [hit.id for hit in store.search("question 0")] == ["000001"]
    chat_session.summaries.remove()
    assert chat_session.journal.wait_until_saved(PATIENCE_S)
    assert store.read("000001").conversation.summaries == ()
    assert store.read("000001").conversation.n_dropped == 0
    chat_session.journal.close(PATIENCE_S)


def test_an_edit_of_a_later_message_keeps_the_summary(engine: Engine) -> None:
    fill(engine, 4)
    compact(engine)
    engine.chat_session.submit_edit("other", 3)
    engine.wait_for(events.GenerationFinished)
    assert engine.chat_session.conversation.summary is not None
    engine.chat_session.fork(8)
    assert engine.chat_session.conversation.summary is not None
    engine.chat_session.fork(4)
    assert engine.chat_session.conversation.summary is None
    assert engine.chat_session.conversation.n_dropped == 0


def messages_of(*texts: str) -> list[ChatMessage]:
    roles = (Role.USER, Role.ASSISTANT)
    return [ChatMessage(roles[n % 2], text) for n, text in enumerate(texts)]


def test_the_last_turn_is_never_summarized() -> None:
    conversation = Conversation(messages=messages_of("short", "short", "short", LONG * 9))
    assert n_to_replace(conversation) == 2
    conversation = Conversation(messages=messages_of("short", LONG))
    assert n_to_replace(conversation) == 0
    assert n_to_replace(Conversation()) == 0


def test_only_the_words_of_the_user_are_quoted() -> None:
    first, reply, second, _ = messages_of("I  am\nAda", "Hello Ada", "a " * 400, "yes")
    first.folded = ""
    quotes = quotes_of([first, reply, second], 2000)
    assert '- "I am Ada"' in quotes
    assert "Hello" not in quotes
    assert quotes.endswith('a ..."')
    assert quotes_of([first, reply], 20).endswith('- "I am Ada"')
    assert "- (1 earlier)" in quotes_of([first, reply, second], 310)
    assert quotes_of([], 100) == ""


def test_the_parts_of_the_context_are_named() -> None:
    conversation = Conversation("Be brief.", messages_of("what is it", LONG, "notes", "fine"))
    conversation.messages[2].text = f"notes.md\n{LONG} {LONG}"
    conversation.messages[2].folded = "[notes.md]"
    parts = parts_of(conversation, 1000)
    assert [part.name for part in parts] == [
        "system prompt",
        "documents, pastes",
        "your messages",
        "replies",
    ]
    assert abs(sum(part.n_tokens for part in parts) - 1000) <= 3
    conversation.summarize("It is a word.", 2)
    text = describe_context(conversation, 1000, 4000)
    first, *lines, last = text.splitlines()
    assert first == "Context: 1,000 of 4,000 tokens are used (25 %)"
    assert last == "The first 2 messages are read as a summary (/compact show shows it)"
    assert any(line.split()[:1] == ["summary"] for line in lines)
    assert any(line.split()[:2] == ["free", "3,000"] for line in lines)
