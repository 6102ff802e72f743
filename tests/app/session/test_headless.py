"""A conversation without a screen: each request yields events until the engine is idle."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.backend.options import ChatOptions
from app.conversations.conversation import Ending, Role
from app.session.events import (
    Event,
    GenerationFailed,
    GenerationFinished,
    ModelFailed,
    ModelLoaded,
    PieceGenerated,
    PromptRefused,
    PromptStopped,
    TextGenerated,
)
from app.session.headless import HeadlessChat, NothingToDoError
from engine import Sampling
from engine.errors import BrokenModelError, GGUFError
from tests.app.fake_engine import Gate, Script


@pytest.fixture
def script() -> Script:
    return Script(replies=[["one", "."], ["two", "."], ["three", "."]])


@pytest.fixture
def talk(script: Script) -> Iterator[HeadlessChat]:
    options = ChatOptions(
        open_model=script.open_model, sampling=lambda chosen, model, mode: None, emits_pieces=True
    )
    talk = HeadlessChat(options, clock=script.clock)
    yield talk
    for gate in (script.token_gate, script.prefill_gate):
        if gate is not None:
            gate.open()
    assert talk.close() == ""


def opened(talk: HeadlessChat) -> HeadlessChat:
    events = list(talk.open(Path("m.gguf")))
    assert isinstance(events[-1], ModelLoaded)
    return talk


def answer(events: Iterator[Event]) -> str:
    received = list(events)
    assert isinstance(received[-1], GenerationFinished), received
    return "".join(event.text for event in received if isinstance(event, TextGenerated))


def texts(talk: HeadlessChat) -> list[str]:
    return [message.text for message in talk.chat_session.conversation.messages]


def cache_text(script: Script) -> str:
    model = script.opened[-1]
    return model.tokenizer.decode(model.sessions[0].tokens)


def test_turns_follow_each_other(talk: HeadlessChat, script: Script) -> None:
    opened(talk)
    assert [answer(talk.ask("first")), answer(talk.ask("second"))] == ["one.", "two."]
    assert texts(talk) == ["first", "one.", "second", "two."]
    assert answer(talk.regenerate()) == "three."
    assert texts(talk) == ["first", "one.", "second", "three."]


def test_a_model_that_cannot_open_is_an_event_with_its_error(
    talk: HeadlessChat, script: Script
) -> None:
    script.open_error = GGUFError("m.gguf: broken")
    (failed,) = list(talk.open(Path("m.gguf")))
    assert isinstance(failed, ModelFailed)
    assert failed.error is script.open_error
    with pytest.raises(NothingToDoError, match="no model is loaded"):
        talk.ask("hello")


def test_a_stop_from_another_thread_keeps_the_partial_reply(
    talk: HeadlessChat, script: Script
) -> None:
    script.token_gate = Gate()
    script.token_gate.allow(1)
    events = []
    for event in opened(talk).ask("first"):
        events.append(event)
        if isinstance(event, PieceGenerated):
            stopper = threading.Thread(target=talk.stop)
            stopper.start()
            stopper.join()
    assert isinstance(events[-1], GenerationFinished)
    assert events[-1].ending is Ending.STOPPED
    assert texts(talk) == ["first", "one"]
    script.token_gate.open()
    assert answer(talk.continue_reply()) == "one."
    assert texts(talk) == ["first", "one."]


def test_a_stop_before_the_reply_starts_is_not_lost(talk: HeadlessChat, script: Script) -> None:
    script.prefill_gate = Gate()
    events = opened(talk).ask("first")
    talk.stop()
    assert isinstance(list(events)[-1], PromptStopped)
    assert not talk.is_restored
    script.prefill_gate.open()
    assert answer(talk.regenerate()) == "one."


def test_an_abandoned_reply_stops_before_the_next_one(talk: HeadlessChat, script: Script) -> None:
    script.token_gate = Gate()
    script.token_gate.allow(1)
    events = opened(talk).ask("first")
    for event in events:
        if isinstance(event, PieceGenerated):
            break
    del events
    threading.Timer(0, script.token_gate.open).start()
    assert answer(talk.ask("second"))
    assert texts(talk)[0::2] == ["first", "second"]


def test_a_completed_text_is_not_part_of_the_conversation(
    talk: HeadlessChat, script: Script
) -> None:
    opened(talk)
    assert answer(talk.ask("first")) == "one."
    assert answer(talk.complete("Once upon a time")) == "two."
    assert cache_text(script) == "Once upon a timetwo."
    assert texts(talk) == ["first", "one."]
    assert answer(talk.ask("second")) == "three."
    assert cache_text(script) == "firstone.secondthree."


def test_a_failed_reply_replaces_nothing(talk: HeadlessChat, script: Script) -> None:
    opened(talk)
    answer(talk.ask("first"))
    script.prefill_error = BrokenModelError("m.gguf: NaN")
    (failed,) = list(talk.regenerate())
    assert isinstance(failed, GenerationFailed)
    assert failed.error is script.prefill_error
    assert talk.is_restored
    assert texts(talk) == ["first", "one."]


def test_a_repeated_message_that_no_longer_fits_stays(talk: HeadlessChat, script: Script) -> None:
    script.n_ctx = 20
    opened(talk)
    talk.chat_session.conversation.add_user("w " * 40)
    (refused,) = list(talk.regenerate())
    assert isinstance(refused, PromptRefused)
    assert texts(talk) == ["w " * 40]


def test_another_model_continues_the_conversation(talk: HeadlessChat, script: Script) -> None:
    opened(talk)
    answer(talk.ask("first"))
    events = list(talk.switch_model(Path("other.gguf")))
    assert isinstance(events[0], ModelLoaded)
    assert cache_text(script).startswith("firstone.")
    assert answer(talk.ask("second")) == "two."
    assert [message.role for message in talk.chat_session.conversation.messages] == [
        Role.USER,
        Role.ASSISTANT,
    ] * 2


def test_a_repetitive_reply_continues_without_repeating(script: Script) -> None:
    unit = [f"{word} " for word in ["round", "and", "about", "it", "goes"]]
    script.replies = [["Well: ", *unit * 100], ["On", "."]]
    sampling = Sampling(temperature=0.3, repeat_penalty=1.5, repeat_window=16)
    talk = HeadlessChat(
        ChatOptions(open_model=script.open_model, sampling=lambda chosen, model, mode: sampling),
        clock=script.clock,
    )
    opened(talk)
    last_event = list(talk.ask("first"))[-1]
    assert isinstance(last_event, GenerationFinished)
    assert last_event.ending is Ending.REPEATED
    list(talk.continue_reply())
    answer(talk.ask("second"))
    first, continued, second = script.opened[-1].sessions[0].samplings
    assert first == second == sampling
    assert continued == replace(sampling, repeat_window=64, dry_multiplier=0.8)
    assert talk.close() == ""
