"""Tests of fields that a server needs back: they go to this server only."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from app.backend.remote.returned_fields import FieldCollector, select_returned_fields
from app.backend.remote.tool_calls import messages_of
from app.conversations.conversation import ChatMessage, Conversation, PromptMessage, Role
from app.conversations.message_row import message_of, row_of
from app.conversations.server_fields import MOST_CHARS, ServerFields, fields_of
from app.program.remote_model import RemoteModel
from engine.prompt.tools.calls import CallResult, ToolCall
from tests.app.backend.remote.raw_api import answering, event, http, stream
from tests.app.backend.remote.talking import talking
from tests.app.backend.remote.test_calls import A, B, call_part, desk

DONE = event(finish="stop") + b"data: [DONE]\n\n"
SIGNED = {"google": {"thought_signature": "c2ln"}}
MODEL = RemoteModel("http://127.0.0.1:1/v1", "big")
FIELDS = ServerFields(
    MODEL.server, MODEL.name, {"reasoning_content": "hm"}, ({"extra_content": SIGNED},)
)


def pieces(**fields: Any) -> bytes:
    """Return a reply with these fields, and one chunk for each of their values."""
    values = [{name: value} for name, listed in fields.items() for value in listed]
    return http(b"".join(event(**value) for value in values) + event(content="Blue.") + DONE)


SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": ({"reasoning_content": ["because ", "of", " light"]},
             {"reasoning_content": "because of light"}),
    "details": (
        {
            "reasoning_details": [
                [{"type": "reasoning.text", "text": "be", "index": 0, "signature": None}],
                [{"type": "reasoning.text", "text": "cause", "index": 0, "signature": "c2ln"}],
                [{"type": "reasoning.encrypted", "data": "AAAA", "index": 1}],
                [{"type": "reasoning.encrypted", "data": "BBBB", "index": 1}],
            ]
        },
        {
            "reasoning_details": [
                {"type": "reasoning.text", "text": "because", "index": 0, "signature": "c2ln"},
                {"type": "reasoning.encrypted", "data": "AAAA", "index": 1},
                {"type": "reasoning.encrypted", "data": "BBBB", "index": 1},
            ]
        },
    ),
    "opaque": ({"reasoning_opaque": ["AAAA"],
                "thinking_blocks": [[{"type": "thinking", "signature": "s"}]]},
               {"reasoning_opaque": "AAAA",
                "thinking_blocks": [{"type": "thinking", "signature": "s"}]}),
    "objects": ({"extra_content": [SIGNED, {"google": {"thought": True}}]},
                {"extra_content": {"google": {"thought_signature": "c2ln", "thought": True}}}),
    "nothing": ({"reasoning_content": [None, ""], "annotations": [[1]], "audio": [{"id": "x"}]},
                {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_fields_of_a_reply_go_back_with_it(name: str) -> None:
    fields, expected = SHAPES[name]
    with (
        answering(pieces(**fields), stream("Yes."), stream("No.")) as api,
        talking(api.url) as talk,
    ):
        for question in ("why?", "sure?", "still?"):
            list(talk.ask(question))
    _, second, third = api.bodies
    for body in (second, third):
        assert body["messages"][1] == {"role": "assistant", "content": "Blue.", **expected}
    assert third["messages"][3] == {"role": "assistant", "content": "Yes."}


CALL_FIELDS: dict[str, list[dict[str, Any]]] = {
    "of a call": [{"extra_content": SIGNED}, {}],
    "of both calls": [
        {"thought_signature": "a"},
        {"provider_specific_fields": {"thought_signature": "b"}},
    ],
}


@pytest.mark.parametrize("name", CALL_FIELDS)
def test_fields_of_calls_go_back_with_them(name: str) -> None:
    first, second = CALL_FIELDS[name]
    calls = [
        call_part("echo", A, id="1", index=0, **first),
        call_part("do", B, id="2", index=1, **second),
    ]
    calls[1]["function"]["thought_signature"] = "within"
    body = event(reasoning_content="look") + event(tool_calls=calls) + event(finish="tool_calls")
    with desk(http(body), stream("Done.")) as (user, api):
        user.ask("what?")
        user.call("1", "2")
    message = api.bodies[-1]["messages"][1]
    assert message["reasoning_content"] == "look"
    first_call, second_call = message["tool_calls"]
    assert first_call == {
        "id": "1",
        "type": "function",
        "function": {"name": "echo", "arguments": A},
        **first,
    }
    function = {"thought_signature": "within", "name": "do", "arguments": B}
    assert second_call == {"id": "2", "type": "function", "function": function, **second}


def test_returned_fields_go_to_no_other_model() -> None:
    history = (PromptMessage("user", "q"), PromptMessage("assistant", "a", server_fields=FIELDS))
    assert messages_of(history, MODEL)[1]["reasoning_content"] == "hm"
    for model in (
        None,
        replace(MODEL, name="small"),
        replace(MODEL, server="http://127.0.0.1:2/v1"),
    ):
        assert messages_of(history, model)[1] == {"role": "assistant", "content": "a"}


def test_returned_fields_replace_no_text() -> None:
    fields = replace(
        FIELDS,
        message={"role": "system", "content": "x"},
        calls=({"id": "9", "function": {"name": "y"}},),
    )
    history = (
        PromptMessage("user", "q"),
        PromptMessage("assistant", "a", (ToolCall("echo", A, "1"),), server_fields=fields),
    )
    assert messages_of(history, MODEL)[1] == messages_of(history)[1]


def test_edited_replies_have_no_returned_fields() -> None:
    question = ChatMessage(Role.USER, "q")
    edited = ChatMessage(Role.ASSISTANT, "a", is_edited=True, server_fields=FIELDS)
    call_message = ChatMessage(
        Role.ASSISTANT, "", raw="call", calls=(ToolCall("echo", A, "1"),), server_fields=FIELDS
    )
    results = ChatMessage(Role.USER, "", results=(CallResult("echo", "a", "1"),))
    assert Conversation(None, [question, edited]).prompt_messages()[1].server_fields is None
    assert (
        Conversation(None, [question, call_message, question]).prompt_messages()[1].server_fields
        is None
    )
    assert (
        Conversation(None, [question, call_message, results]).prompt_messages()[1].server_fields
        == FIELDS
    )


@pytest.mark.parametrize(
    "words", ["reasoning_content is not supported", "Extra inputs are not permitted"]
)
def test_refused_fields_are_left_out_of_the_next_try(words: str) -> None:
    refusal = http(
        json.dumps({"error": {"message": words}}).encode(), "application/json", "400 Bad"
    )
    answers = (pieces(reasoning_content=["hm"]), refusal, stream("Yes."))
    with answering(*answers) as api, talking(api.url) as talk:
        list(talk.ask("why?"))
        list(talk.ask("sure?"))
    _, first_try, retried = api.bodies
    assert first_try["messages"][1] == {
        "role": "assistant",
        "content": "Blue.",
        "reasoning_content": "hm",
    }
    assert retried["messages"][1] == {"role": "assistant", "content": "Blue."}


def test_returned_fields_are_saved_with_the_reply() -> None:
    reply = ChatMessage(Role.ASSISTANT, "a", server_fields=FIELDS)
    role, _, _, text, fields_json = row_of(reply)
    assert message_of(role, text, fields_json).server_fields == FIELDS
    assert "server_fields" not in row_of(ChatMessage(Role.ASSISTANT, "a"))[4]


@pytest.mark.parametrize(
    "values",
    [
        None,
        5,
        {},
        {"server": 1, "model": "m", "message": {}, "calls": []},
        {"server": "s", "model": "m", "message": [], "calls": []},
        {"server": "s", "model": "m", "message": {}, "calls": [5]},
        {"server": "s", "model": "m", "message": {"x": "y" * MOST_CHARS}, "calls": []},
    ],
)
def test_invalid_saved_fields_are_ignored(values: Any) -> None:
    assert fields_of(values) is None


def test_too_many_returned_fields_are_dropped() -> None:
    for flood in ("x" * 5000, [{"data": "y" * 5000}], {"a": {"b": "z" * 5000}}):
        collector = FieldCollector()
        for _ in range(200):
            collector.push({"reasoning_content": flood})
        assert collector.fields == {}
    many = FieldCollector()
    for number in range(100):
        many.push({f"reasoning{number}": "x"})
    assert many.fields == {}
    deep: Any = "x"
    for _ in range(200):
        deep = {"a": deep}
    nested = FieldCollector()
    nested.push({"reasoning_details": [deep]})
    assert nested.fields == {}
    assert select_returned_fields({"thought" * 100: "x"}) == {}
