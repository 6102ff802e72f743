"""Turns of a chat session that end without a reply, and several replies to one message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.conversations.conversation import Ending
from app.conversations.journal import Journal
from app.conversations.store import Store
from app.session.chat_session import ChatSession
from app.session.events import AnswersFinished, PromptStopped
from engine import Sampling
from tests.app.backend.engine_driver import PATIENCE_S, Engine
from tests.app.fake_engine import Gate, Script


@pytest.fixture
def engine(script: Script) -> Iterator[Engine]:
    engine = Engine(script, sampling=lambda chosen, model, mode: Sampling(temperature=0.7, seed=5))
    yield engine
    engine.close()


def stop_before_first_token(engine: Engine) -> None:
    assert engine.script.prefill_gate is not None
    assert engine.script.prefill_gate.waiting.wait(PATIENCE_S)
    engine.engine_thread.cancel()
    engine.wait_for(PromptStopped)


def test_stopping_an_edit_of_a_dropped_turn_changes_nothing(engine: Engine) -> None:
    engine.load()
    for text in ("one", "two", "three"):
        engine.ask(text)
    conversation = engine.chat_session.conversation
    conversation.n_dropped = 4
    messages = list(conversation.messages)
    engine.script.prefill_gate = Gate()
    engine.chat_session.submit_edit("something else", 0)
    stop_before_first_token(engine)
    assert conversation.messages == messages
    assert conversation.n_dropped == 4


def test_several_answers_are_saved_while_they_are_written(engine: Engine, tmp_path: Path) -> None:
    store = Store(tmp_path)
    engine.chat_session = chat_session = ChatSession(engine.engine_thread, None, Journal(store))
    engine.script.replies = [["before"], ["new", " answer"], ["another", " one"]]
    engine.load()
    engine.ask("hello")
    engine.script.token_gate = gate = Gate()
    gate.allow(1)
    chat_session.regenerate(2)
    engine.until(lambda: chat_session.running_text == "new")
    chat_session.save_partial()
    assert chat_session.journal.wait_until_saved(PATIENCE_S)
    saved = store.read(chat_session.journal.id).conversation.messages[-1]
    assert (saved.text, saved.ending) == ("new", Ending.INTERRUPTED)
    assert saved.raw == "new"
    gate.open()
    engine.wait_for(AnswersFinished)
    chat_session.journal.wait_until_saved(PATIENCE_S)
    saved = store.read(chat_session.journal.id).conversation.messages[-1]
    assert saved.text == "new answer"
    chat_session.journal.close(PATIENCE_S)
