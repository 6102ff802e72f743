"""Turns of a chat session that end without a reply, and several replies to one message."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from app.conversations.conversation import ChatMessage, Ending
from app.conversations.export import to_markdown
from app.conversations.journal import Journal
from app.conversations.store import Store
from app.session.chat_session import ChatSession
from app.session.events import AnswersFinished, PromptStopped
from engine import Sampling
from tests.app.backend.engine_driver import PATIENCE_S, Engine
from tests.app.fake_engine import Gate, Script

ROOT = Path(__file__).parents[3]


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
    running = chat_session.running
    assert running is not None
    engine.until(lambda: running.answers is not None and running.answers.replies[0].text == "new")
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
    assert [message.text for (message,) in saved.alternatives] == ["before", "another one"]
    chat_session.journal.close(PATIENCE_S)


KILLED = """
import os, signal, sys
from pathlib import Path
from app.conversations.journal import Journal
from app.conversations.store import Store
from app.session.chat_session import ChatSession
from engine import Sampling
from tests.app.backend.engine_driver import PATIENCE_S, Engine
from tests.app.fake_engine import Gate, Script

replies = [["before"], ["new", " answer"], ["another", *[" one"] * 500]]
sampling = Sampling(temperature=0.7, seed=5)
engine = Engine(Script(replies=replies), sampling=lambda chosen, model, mode: sampling)
journal = Journal(Store(Path(sys.argv[1])))
engine.chat_session = ChatSession(engine.engine_thread, None, journal)
engine.load()
engine.ask("hello")
engine.script.token_gate = gate = Gate()
engine.chat_session.regenerate(2)
running = engine.chat_session._running

def have_answers():
    gate.allow(1)
    answers = running.answers
    return answers is not None and 0 in answers.finished and answers.replies[1].text

engine.until(have_answers)
engine.chat_session.save_partial()
assert journal.wait_until_saved(PATIENCE_S)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_keeps_a_finished_answer_and_a_part(tmp_path: Path) -> None:
    process = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT)
    assert process.returncode == -signal.SIGKILL
    saved = Store(tmp_path).read("000001").conversation.messages
    assert [message.text for message in saved] == ["hello", "new answer"]
    assert saved[-1].ending is Ending.COMPLETE
    before, second = (message for (message,) in saved[-1].alternatives)
    assert (before.text, before.ending) == ("before", Ending.COMPLETE)
    assert second.text.startswith("another")
    assert second.ending is Ending.INTERRUPTED


def test_an_answer_of_another_model_is_saved_as_it_grows(engine: Engine, tmp_path: Path) -> None:
    store = Store(tmp_path)
    engine.chat_session = chat_session = ChatSession(engine.engine_thread, None, Journal(store))
    engine.script.replies = [["before"], ["another", *(f" {n}" for n in range(500))]]
    engine.load()
    engine.ask("hello")
    engine.script.token_gate = gate = Gate()
    assert chat_session.compare(Path("other.gguf"))

    def has_begun() -> bool:
        gate.allow(1)
        running = chat_session.running
        if running is None:
            return False
        return running.answers is not None and bool(running.answers.replies[1].text)

    engine.until(has_begun)
    chat_session.save_partial()
    assert chat_session.journal.wait_until_saved(PATIENCE_S)
    shown, other = answers_saved(store, chat_session)
    assert (shown.text, shown.ending, shown.model) == ("before", Ending.COMPLETE, "model Q4_K_M")
    assert (other.ending, other.model) == (Ending.INTERRUPTED, "other Q4_K_M")
    assert other.text.startswith("another")

    gate.open()
    engine.wait_for(AnswersFinished)
    chat_session.journal.wait_until_saved(PATIENCE_S)
    shown, other = answers_saved(store, chat_session)
    assert (shown.text, shown.model) == ("before", "model Q4_K_M")
    assert other.text.endswith(" 499")
    assert (other.ending, other.model) == (Ending.COMPLETE, "other Q4_K_M")
    text = to_markdown(
        chat_session.conversation, "model Q4_K_M", datetime.now(), with_branches=True
    )
    assert "*model Q4_K_M · 1 token" in text
    assert "*other Q4_K_M · 501 tokens" in text
    chat_session.journal.close(PATIENCE_S)


def answers_saved(store: Store, chat_session: ChatSession) -> list[ChatMessage]:
    """Return the saved answers to the last message, the shown one first."""
    reply = store.read(chat_session.journal.id).conversation.messages[-1]
    return [reply, *(branch[0] for branch in reply.alternatives)]
