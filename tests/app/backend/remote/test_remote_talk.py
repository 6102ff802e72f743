"""Tests of conversations with a server: the same events, turns and files as with a local engine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from app.backend.status import EngineStatus
from app.conversations.conversation import Ending
from app.conversations.journal import ConversationStorage, Journal
from app.conversations.reply_lines import whole_footer
from app.conversations.store import Store
from app.forms.answer_form import AnswerForm
from app.program.remote_model import RemoteModel
from app.program.settings import built_in_settings, override
from app.session.commands import choose_thinking
from app.session.events import (
    AdaptersChanged,
    Event,
    GenerationFailed,
    GenerationFinished,
    ModelLoaded,
    ModelSwitchFailed,
    PromptStopped,
    TextGenerated,
)
from app.session.headless import HeadlessChat
from tests.app.backend.remote.raw_api import HANG, RawApi, answering, event, http, stream
from tests.app.backend.remote.talking import talking, text_of
from tests.app.fake_engine import Gate, Script
from tests.app.server.serving import Serving, serving


@pytest.fixture
def script() -> Script:
    return Script(replies=[["Par", "is", "."], ["Ro", "me", "."], ["Bern", "."]])


def texts(talk: HeadlessChat) -> list[str]:
    return [message.text for message in talk.chat_session.conversation.messages]


def finished_event(events: Iterable[Event]) -> GenerationFinished:
    *_, last_event = events
    assert isinstance(last_event, GenerationFinished), last_event
    return last_event


def failure_reason(events: Iterable[Event]) -> str:
    *_, last_event = events
    assert isinstance(last_event, GenerationFailed), last_event
    return last_event.reason


def sent_text(server: Serving) -> str:
    model = server.script.opened[0]
    return model.tokenizer.decode(model.sessions[0].tokens)


def test_turns_with_the_own_server(monkeypatch: pytest.MonkeyPatch, script: Script) -> None:
    with serving(monkeypatch, script) as server, talking(server.url + "/v1") as talk:
        model = talk.chat_session.model
        assert model is not None
        assert (model.name, model.server) == ("m", f"127.0.0.1:{server.port}")
        assert model.n_ctx > 0
        assert text_of(list(talk.ask("capital of France?"))) == "Paris."
        ended = finished_event(talk.ask("of Italy?"))
        assert (ended.ending, ended.figures.tokens, ended.raw) == (Ending.COMPLETE, 3, "Rome.")
        assert ended.figures.reused_tokens > 0
        assert ended.figures.first_token_s is not None
        assert text_of(list(talk.regenerate())) == "Bern."
        assert texts(talk) == ["capital of France?", "Paris.", "of Italy?", "Bern."]
        assert "Paris." in sent_text(server)
        assert talk.engine_thread.status.context_used > 0
        several = failure_reason(talk._follow_turn(talk.chat_session.regenerate(2), ""))
        assert several.endswith(
            "writes one answer at a time (/regen without a number asks for one)"
        )
        assert texts(talk)[-1] == "Bern."


def test_a_reply_is_stopped_and_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    script = Script(replies=[["one ", "two ", "three"], ["and more"]], token_gate=gate)
    with serving(monkeypatch, script) as server, talking(server.url + "/v1") as talk:
        gate.allow(1)
        for event in talk.ask("count"):
            if isinstance(event, TextGenerated):
                talk.stop()
        gate.open()
        partial_text = texts(talk)[-1]
        assert partial_text == "one "
        list(talk.continue_reply())
        assert texts(talk) == ["count", partial_text + "and more"]
        assert (partial_text + "and more") in sent_text(server)


class StopOnceSent:
    """Exchange that stops its turn as soon as the server has the request."""

    def __init__(self, talk: HeadlessChat, api: RawApi) -> None:
        self._talk = talk
        self._api = api
        self.is_done = False
        talk._on_status = self

    def __call__(self, status: EngineStatus) -> None:
        self.is_done = bool(self._api.bodies)
        if self.is_done:
            self._talk.stop()


@pytest.mark.parametrize("beginning", [[], ["so far"]])
def test_stopping_does_not_wait_for_the_server(beginning: list[str]) -> None:
    with (
        answering(http(b"".join(event(content=piece) for piece in beginning) + HANG)) as api,
        talking(api.url) as talk,
    ):
        watch = StopOnceSent(talk, api) if not beginning else None
        last_events: list[Event] = []
        for received_event in talk.ask("hi"):
            last_events = [received_event]
            talk.stop()
        assert watch is None or watch.is_done
        assert isinstance(last_events[0], GenerationFinished if beginning else PromptStopped)
        assert texts(talk) == ["hi", *beginning]


def test_a_partial_reply_stays_and_can_be_continued() -> None:
    with (
        answering(stream("The sky", " is", end=b""), stream(" blue.")) as api,
        talking(api.url) as talk,
    ):
        assert failure_reason(talk.ask("colour?")).endswith(
            ": the connection ended before the answer did"
        )
        assert texts(talk) == ["colour?", "The sky is"]
        list(talk.continue_reply())
        assert texts(talk) == ["colour?", "The sky is blue."]
        sent = api.bodies[1]
        assert sent["messages"][-1] == {"role": "assistant", "content": "The sky is"}
        assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)
        assert sent["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    "again",
    [
        ["The colour of the sky", " is", " blue."],
        ["The colour", " of the", " sky is blue."],
        [" is", " blue."],
    ],
)
def test_a_repeated_beginning_is_dropped(again: list[str]) -> None:
    with (
        answering(stream("The colour of ", "the sky", end=b""), stream(*again)) as api,
        talking(api.url) as talk,
    ):
        list(talk.ask("colour?"))
        ended = finished_event(talk.continue_reply())
        assert texts(talk)[-1] == ended.raw == "The colour of the sky is blue."


def test_an_unanswered_question_is_sent_again() -> None:
    with answering(http(b"", status="503 Busy"), stream("yes")) as api, talking(api.url) as talk:
        assert "status 503" in failure_reason(talk.ask("there?"))
        assert texts(talk) == ["there?"]
        assert text_of(list(talk.regenerate())) == "yes"
        assert [len(body["messages"]) for body in api.bodies] == [1, 1]


def test_earlier_messages_are_edited() -> None:
    with answering(*(stream(word) for word in "abcd")) as api, talking(api.url) as talk:
        list(talk.begin("be brief"))
        for question in ("1", "2"):
            list(talk.ask(question))
        list(talk.edit(0, "new"))
        assert texts(talk) == ["new", "c"]
        assert [entry["content"] for entry in api.bodies[-1]["messages"]] == ["be brief", "new"]
        list(talk.edit_reply(0, "I say"))
        assert texts(talk) == ["new", "I sayd"]


def test_thoughts_are_separated_and_not_sent_again() -> None:
    thought = (
        event(reasoning_content="Let me ")
        + event(reasoning_content="see.")
        + event(content="Four.")
    )
    tagged = event(content="<think>\nhm\n</think>\n\nFive.")
    done = event(finish="stop") + b"data: [DONE]\n\n"
    with (
        answering(http(thought + done), http(tagged + done), stream("x")) as api,
        talking(api.url) as talk,
    ):
        for question in ("2+2?", "2+3?", "and?"):
            list(talk.ask(question))
        thoughts = [message.thinking for message in talk.chat_session.conversation.messages[1:4:2]]
        assert [thought.text.strip() for thought in thoughts if thought is not None] == [
            "Let me see.",
            "hm",
        ]
        contents = [thought["content"] for thought in api.bodies[-1]["messages"]]
        assert contents == ["2+2?", "Four.", "2+3?", "Five.", "and?"]


def test_an_interrupted_thought_continues() -> None:
    first_half = http(event(reasoning_content="Let me "))
    second_half = http(
        event(reasoning_content="see.")
        + event(content="Four.", finish="stop")
        + b"data: [DONE]\n\n"
    )
    with answering(first_half, second_half) as api, talking(api.url) as talk:
        list(talk.ask("2+2?"))
        list(talk.continue_reply())
        reply = talk.chat_session.conversation.messages[-1]
        assert reply.text == "Four."
        assert reply.thinking is not None
        assert reply.thinking.text.strip() == "Let me see."
        assert api.bodies[1]["messages"][-1]["content"].startswith("<think>")


def test_only_options_of_the_user_are_sent() -> None:
    settings = built_in_settings()
    for name, value in {
        "temperature": 0.5,
        "max_tokens": 7,
        "seed": -1,
        "repeat_window": 9,
    }.items():
        settings = override(settings, f"sampling.{name}", value, name)
    with answering(stream("a"), stream("b"), stream("c")) as api:
        with talking(api.url, "small") as talk:
            list(talk.ask("hi"))
        with talking(api.url, sampling=settings.chosen_sampling) as talk:
            for mode in ("high", "off"):
                choose_thinking(talk.chat_session, mode)
                list(talk.ask("hi"))
    plain, high, off = api.bodies
    assert set(plain) == {"model", "messages", "stream", "stream_options"}
    assert plain["model"] == "small"
    assert {name: value for name, value in high.items() if name not in plain} == {
        "temperature": 0.5, "max_tokens": 7, "repeat_last_n": 9, "reasoning_effort": "high",
    }  # fmt: skip
    assert off["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        (
            ("schema", '{"type": "object"}'),
            {"json_schema": {"name": "answer", "schema": {"type": "object"}}},
        ),
        (("regex", "[0-9]+"), {"type": "regex", "pattern": "[0-9]+"}),
        (("grammar", 'root ::= "x"'), None),
    ],
)
def test_the_form_of_answers_is_sent(form: tuple[str, str], fields: dict[str, Any] | None) -> None:
    with answering(stream("a")) as api, talking(api.url) as talk:
        talk.chat_session.change_options(form=AnswerForm(*form, name="f"))
        list(talk.ask("hi"))
        (sent,) = api.bodies
        assert sent.get("grammar") == (form[1] if fields is None else None)
        assert (fields or {}).items() <= sent.get("response_format", {}).items()


def test_a_refused_form_is_sent_in_the_old_format() -> None:
    refusal = http(
        b'{"error": {"message": "Input should be \'text\' or \'json_object\'"}}', status="500 No"
    )
    with answering(refusal, stream("a")) as api, talking(api.url) as talk:
        talk.chat_session.change_options(form=AnswerForm("schema", '{"type": "object"}', name="f"))
        assert text_of(list(talk.ask("hi"))) == "a"
        assert api.bodies[1]["response_format"] == {
            "type": "json_object",
            "schema": {"type": "object"},
        }


def test_figures_of_the_server_are_used() -> None:
    figures = {
        "usage": {"prompt_tokens": 20, "completion_tokens": 6},
        "timings": {"cache_n": 5, "prompt_ms": 500},
    }
    last_chunk = (
        b"data: " + json.dumps({"choices": [], **figures}).encode() + b"\n\ndata: [DONE]\n\n"
    )
    body = event(content="ab") + event(content="cd", finish="stop") + last_chunk
    with answering(http(body)) as api, talking(api.url) as talk:
        reply_event = finished_event(talk.ask("hi"))
        meter = talk.engine_thread.status.meter
        assert meter is not None
        assert (
            reply_event.figures.tokens,
            reply_event.figures.prompt_tokens,
            reply_event.figures.reused_tokens,
        ) == (
            6,
            15,
            5,
        )
        assert (meter.prefill_s, meter.prefill_tps) == (0.5, 30.0)


def test_missing_figures_are_not_shown() -> None:
    with answering(stream("a", "b")) as api, talking(api.url) as talk:
        ended = finished_event(talk.ask("hi"))
        assert "read" not in whole_footer(ended.figures, ended.ending)
        assert ended.figures.tokens == 2


def test_a_conversation_moves_from_server_to_file_and_back(tmp_path: Path) -> None:
    local = Script(replies=[["from", " here"]])
    store = Store(tmp_path)
    with answering(stream("from there"), stream("there again")) as api:
        with talking(
            api.url, script=local, storage=ConversationStorage(store=store, journal=Journal(store))
        ) as talk:
            list(talk.ask("one"))
            assert any(
                isinstance(event, ModelLoaded) for event in talk.switch_model(Path("m.gguf"))
            )
            list(talk.ask("two"))
            saved = talk.chat_session.journal.id
        session = local.opened[0].sessions[0]
        assert "from there" in local.opened[0].tokenizer.decode(session.tokens)
        opened = store.open(saved)
        with talking(
            api.url, storage=ConversationStorage(store=store, journal=Journal(store)), opened=opened
        ) as talk:
            list(talk.ask("three"))
            assert texts(talk) == ["one", "from there", "two", "from here", "three", "there again"]
        assert [entry["content"] for entry in api.bodies[-1]["messages"]][:4] == [
            "one",
            "from there",
            "two",
            "from here",
        ]


def test_a_local_model_stays_if_the_server_fails(tmp_path: Path) -> None:
    local = Script(replies=[["still here"]])
    with answering(stream("a")) as api, talking(api.url, script=local) as talk:
        list(talk.switch_model(Path("m.gguf")))
        (failure,) = list(talk.switch_model(RemoteModel(api.url, "none such")))
        assert isinstance(failure, ModelSwitchFailed)
        assert failure.reason.endswith("has no model none such (it has: big, small)")
        assert text_of(list(talk.ask("hi"))) == "still here"
        list(talk.switch_model(RemoteModel(api.url, "big")))
        assert local.opened[0].is_closed
        assert text_of(list(talk.ask("hi"))) == "a"


def test_a_server_stays_if_another_server_fails() -> None:
    with answering() as api:
        url = api.url
    with answering(stream("a")) as api, talking(api.url) as talk:
        (failure,) = list(talk.switch_model(RemoteModel(url)))
        assert isinstance(failure, ModelSwitchFailed)
        assert "cannot be reached" in failure.reason
        assert text_of(list(talk.ask("hi"))) == "a"


def test_adapters_are_refused_with_a_server(
    monkeypatch: pytest.MonkeyPatch, script: Script
) -> None:
    with serving(monkeypatch, script) as server, talking(server.url + "/v1") as talk:
        refused = list(talk.use_adapters(("/x/a.gguf",)))[-1]
        assert isinstance(refused, AdaptersChanged)
        assert "only with models on this machine" in refused.trouble
        # A saved conversation may have adapters.
        talk.chat_session.change_options(adapters=("/x/a.gguf",))
        assert failure_reason(talk.ask("capital of France?")) == refused.trouble
        assert list(talk.use_adapters(()))[-1] == AdaptersChanged(())
        assert text_of(list(talk.regenerate())) == "Paris."
