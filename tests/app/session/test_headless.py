"""A conversation without a screen: what is asked for yields events until the engine is free."""

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
        open_model=script.open_model, sampling=lambda model, mode: None, emits_pieces=True
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
    came = list(events)
    assert isinstance(came[-1], GenerationFinished), came
    return "".join(event.text for event in came if isinstance(event, TextGenerated))


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


def test_a_stop_from_another_thread_keeps_what_there_is(talk: HeadlessChat, script: Script) -> None:
    script.token_gate = Gate()
    script.token_gate.allow(1)
    came = []
    for event in opened(talk).ask("first"):
        came.append(event)
        if isinstance(event, PieceGenerated):
            stopper = threading.Thread(target=talk.stop)
            stopper.start()
            stopper.join()
    assert isinstance(came[-1], GenerationFinished)
    assert came[-1].ending is Ending.STOPPED
    assert texts(talk) == ["first", "one"]
    script.token_gate.open()
    assert answer(talk.continue_reply()) == "one."
    assert texts(talk) == ["first", "one."]


def test_a_stop_before_the_reply_begins_is_not_forgotten(
    talk: HeadlessChat, script: Script
) -> None:
    script.prefill_gate = Gate()
    events = opened(talk).ask("first")
    talk.stop()
    assert isinstance(list(events)[-1], PromptStopped)
    assert not talk.is_restored
    script.prefill_gate.open()
    assert answer(talk.regenerate()) == "one."


def test_a_reply_no_one_follows_stops_and_the_next_one_comes(
    talk: HeadlessChat, script: Script
) -> None:
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


def test_a_plain_text_goes_on_and_is_no_part_of_the_conversation(
    talk: HeadlessChat, script: Script
) -> None:
    opened(talk)
    assert answer(talk.ask("first")) == "one."
    assert answer(talk.complete("Once upon a time")) == "two."
    assert cache_text(script) == "Once upon a timetwo."
    assert texts(talk) == ["first", "one."]
    assert answer(talk.ask("second")) == "three."
    assert cache_text(script) == "firstone.secondthree."


def test_what_fails_leaves_what_it_would_have_replaced(talk: HeadlessChat, script: Script) -> None:
    opened(talk)
    answer(talk.ask("first"))
    script.prefill_error = BrokenModelError("m.gguf: NaN")
    (failed,) = list(talk.regenerate())
    assert isinstance(failed, GenerationFailed)
    assert failed.error is script.prefill_error
    assert talk.is_restored
    assert texts(talk) == ["first", "one."]


def test_a_message_asked_again_that_no_longer_fits_stays(
    talk: HeadlessChat, script: Script
) -> None:
    script.n_ctx = 20
    opened(talk)
    talk.chat_session.conversation.add_user("w " * 40)
    (refused,) = list(talk.regenerate())
    assert isinstance(refused, PromptRefused)
    assert texts(talk) == ["w " * 40]


def test_another_model_reads_the_conversation_and_goes_on(
    talk: HeadlessChat, script: Script
) -> None:
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


def test_a_reply_that_repeated_itself_goes_on_without(script: Script) -> None:
    unit = [f"{word} " for word in ["round", "and", "about", "it", "goes"]]
    script.replies = [["Well: ", *unit * 100], ["On", "."]]
    own = Sampling(temperature=0.3, repeat_penalty=1.5, repeat_window=16)
    talk = HeadlessChat(
        ChatOptions(open_model=script.open_model, sampling=lambda model, mode: own),
        clock=script.clock,
    )
    opened(talk)
    ended = list(talk.ask("first"))[-1]
    assert isinstance(ended, GenerationFinished)
    assert ended.ending is Ending.REPEATED
    list(talk.continue_reply())
    answer(talk.ask("second"))
    first, gone_on, second = script.opened[-1].sessions[0].samplings
    assert first == second == own
    assert gone_on == replace(own, repeat_window=64, dry_multiplier=0.8)
    assert talk.close() == ""
