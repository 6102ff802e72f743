"""Tests of ``/v1/responses`` with the official client."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest

from app.server.api_error import ApiError
from app.server.dialects.responses_request import read_response_request
from app.server.fields import Fields
from tests.app.server.serving import Serving, client_of

FIRST = {"role": "user", "content": "capital of France?"}


def test_a_text_gets_a_complete_response(server: Serving) -> None:
    reply = client_of(server).responses.create(
        model="m", input="capital of France?", instructions="be brief"
    )
    assert (reply.output_text, reply.status, reply.model) == ("Paris.", "completed", "m")
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (
        11,
        3,
        14,
    )
    chat = server.script.opened[0].chats[0]
    assert [message.content for message in chat.messages][:2] == ["be brief", "capital of France?"]


def test_a_returned_reply_is_cached(server: Serving) -> None:
    client = client_of(server)
    first = client.responses.create(model="m", input=[FIRST])  # type: ignore[list-item]
    items: list[Any] = [
        FIRST,
        *(item.model_dump() for item in first.output),
        {"role": "user", "content": "sure?"},
    ]
    second = client.responses.create(model="m", input=items)
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= 10


def test_a_stream_gives_the_same_response(server: Serving) -> None:
    server.script.opening = "<think>"
    server.script.opened[0].chats[0].opening = "<think>"
    server.script.replies = [["hm", "</think>", "Par", "is."]]
    with client_of(server).responses.stream(model="m", input="capital of France?") as stream:
        events = list(stream)
        final = stream.get_final_response()
    numbers = [event.sequence_number for event in events]  # type: ignore[union-attr]
    assert numbers == list(range(len(events)))
    assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    event_types = "".join(
        event.delta for event in events if event.type == "response.output_text.delta"
    )
    assert event_types == final.output_text == "Paris."
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert (
        "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
        == "hm"
    )
    starts = [event.output_index for event in events if event.type == "response.output_item.added"]
    ends = [event.output_index for event in events if event.type == "response.output_item.done"]
    assert starts == ends == [0, 1]


def test_a_limit_makes_a_response_incomplete(server: Serving) -> None:
    client = client_of(server)
    reply = client.responses.create(model="m", input="hi", max_output_tokens=2)
    assert (reply.output_text, reply.status) == ("Paris", "incomplete")
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(model="m", input="hi", max_output_tokens=2, stream=True))
    assert events[-1].type == "response.incomplete"


def test_an_engine_failure_ends_the_stream_with_an_error(server: Serving) -> None:
    server.script.fail_after_tokens = 1
    client = client_of(server)
    with pytest.raises(sys.modules["openai"].InternalServerError, match="NaN"):
        client.responses.create(model="m", input="hi")
    text = server.post("/v1/responses", {"input": "hi", "stream": True}).text
    assert text.rstrip().rpartition("event: ")[2].startswith('error\ndata: {"type":"error"')
    assert "NaN" in text
    assert "[DONE]" not in text


TOOL: dict[str, Any] = {
    "type": "function", "name": "get_weather", "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]},
}  # fmt: skip
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


def test_a_call_and_its_result_go_there_and_back(server: Serving) -> None:
    server.script.replies = [["Let", " me.", CALL, CALL], ["Rain", "."]]
    client = client_of(server)
    options: dict[str, Any] = {
        "model": "m",
        "tools": [TOOL, {"type": "web_search"}],
        "tool_choice": "auto",
    }
    first = client.responses.create(input=[FIRST], **options)  # type: ignore[list-item]
    assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
    call = first.output[1]
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments), first.status) == (
        "get_weather",
        {"city": "Paris"},
        "completed",
    )
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": output}
        for item, output in zip(
            first.output[1:], ("Rain", [{"type": "input_text", "text": "Rain"}]), strict=True
        )
        if item.type == "function_call"
    ]
    items: list[Any] = [FIRST, *first.output, *results]
    second = client.responses.create(input=items, **options)
    assert second.output_text == "Rain."
    roles = [message.role for message in server.script.opened[0].chats[0].messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens == first.usage.total_tokens


def test_a_streamed_call_is_built_up_by_its_events(server: Serving) -> None:
    server.script.replies = [["Let", " me.", CALL]]
    client = client_of(server)
    tools: Any = [TOOL]
    with client.responses.stream(model="m", input="hi", tools=tools) as stream:
        events = list(stream)
        final = stream.get_final_response()
    event_types = [event.type.removeprefix("response.") for event in events]
    assert event_types[-6:] == [
        "output_item.done", "output_item.added", "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done", "completed",
    ]  # fmt: skip
    numbers = [event.sequence_number for event in events]  # type: ignore[union-attr]
    assert numbers == list(range(len(events)))
    added, delta, done, item_done = events[-5:-1]
    assert added.type == "response.output_item.added"
    assert added.item.type == "function_call"
    assert (added.item.name, added.item.arguments, added.item.status) == (
        "get_weather",
        "",
        "in_progress",
    )
    assert delta.type == "response.function_call_arguments.delta"
    assert done.type == "response.function_call_arguments.done"
    assert delta.delta == done.arguments == '{"city": "Paris"}'
    assert item_done.type == "response.output_item.done"
    assert item_done.item.type == "function_call"
    assert {added.item.id, delta.item_id, done.item_id} == {item_done.item.id}
    assert item_done.item.call_id == final.output[1].call_id  # type: ignore[union-attr]


NAMESPACE: dict[str, Any] = {
    "type": "namespace", "name": "mcp__mini", "description": "Tools of a server.",
    "tools": [TOOL],
}  # fmt: skip
NAMESPACE_CALL = CALL.replace("get_weather", "mcp__mini__get_weather")


def test_a_namespace_goes_there_and_back(server: Serving) -> None:
    server.script.replies = [[NAMESPACE_CALL]]
    answer = server.post("/v1/responses", {"input": "hi", "tools": [NAMESPACE, TOOL]}).json()
    (call,) = answer["output"]
    assert (call["name"], call["namespace"]) == ("get_weather", "mcp__mini")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain"}
    items = [{"role": "user", "content": "hi"}, call, result]
    body = {"input": items, "tools": [NAMESPACE, TOOL], "stream": True}
    text = server.post("/v1/responses", body).text
    first_call = server.script.opened[0].chats[0].messages[1].calls[0]
    assert first_call.name == "mcp__mini__get_weather"
    for event in ("output_item.added", "output_item.done"):
        (line,) = re.findall(f'data: .*"response.{event}".*', text)
        item = json.loads(line.removeprefix("data: "))["item"]
        assert (item["name"], item["namespace"]) == ("get_weather", "mcp__mini")


def test_a_tool_in_a_namespace_may_be_required() -> None:
    choice = {"type": "function", "name": "get_weather", "namespace": "mcp__mini"}
    body = {"input": "hi", "tools": [NAMESPACE, TOOL], "tool_choice": choice}
    tools = read_response_request(Fields(body), "m").tools
    assert tools is not None
    assert tools.required_names == ("mcp__mini__get_weather",)
    assert len(tools.definitions) == 2


def test_fields_of_agents_are_read_and_others_ignored() -> None:
    fields = Fields(
        {
            "model": "gpt-5-codex", "instructions": "be brief", "store": False, "stream": True,
            "metadata": {"a": "b"},
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
            "previous_response_id": None,
            "parallel_tool_calls": False, "truncation": "auto", "reasoning": {"effort": "medium",
                                                                              "summary": "auto"},
            "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "x",
                                                    "schema": {}, "strict": True}},
            "temperature": 0.5, "service_tier": None, "client_metadata": {"x": "y"},
            "future_field": 1,
            "tools": [TOOL, {"type": "web_search"}, {"type": "local_shell"},
                      {"type": "custom", "name": "apply_patch"},
                      {"type": "mcp", "server_label": "x", "server_url": "https://mcp.example"}],
            "input": [
                {"type": "message", "role": "developer",
                 "content": [{"type": "input_text", "text": "in French"}]},
                {"role": "user", "content": "a"},
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x",
                 "content": None},
                {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                 "phase": "commentary",
                 "content": [{"type": "output_text", "text": "let me", "annotations": [],
                              "logprobs": []}]},
                {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "c1",
                 "name": "get_weather",
                 "arguments": "{}"},
                {"type": "item_reference", "id": "msg_0"},
                {"type": "web_search_call", "id": "ws_1", "status": "completed"},
                {"type": "function_call_output", "id": None, "call_id": "c1", "output": "Rain"},
            ],
        }
    )  # fmt: skip
    request = read_response_request(fields, "m")
    messages = [
        (message.role, message.text, *(result.name for result in message.results))
        for message in request.messages
    ]
    assert messages == [
        ("system", "be brief\n\nin French"), ("user", "a"), ("assistant", "let me"),
        ("tool", "Rain", "get_weather"),
    ]  # fmt: skip
    assert request.tools is not None
    assert (
        [tool["function"]["name"] for tool in request.tools.definitions],
        request.tools.single_call,
    ) == (
        ["get_weather"],
        True,
    )
    assert (request.thinking, request.is_streamed, request.sampling) == (
        "medium",
        True,
        {"temperature": 0.5},
    )
    assert request.form is not None
    assert (request.form.name, request.form.text) == ("text.format", "{}")
    tool_types = ("web_search", "local_shell", "custom", "mcp")
    skipped = {f"tools of type {tool_type}" for tool_type in tool_types}
    assert fields.ignored == {
        *skipped,
        "future_field",
        "input of type web_search_call",
        "model (always m)",
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": "hi", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "hi", "conversation": "conv_1"}, "conversation"),
        ({"input": "hi", "background": True}, "background"),
        ({"input": "hi", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "hi", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": 3}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"type": "function_call", "name": 5, "arguments": "{}"}]}, "input[0].name"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": [3]}]}, "input[0].call_id"),
        ({"input": "hi", "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"input": "hi", "tools": [{"type": "namespace"}]}, "tools[0].name"),
        ({"input": "hi", "tools": [{**NAMESPACE, "name": "a b"}]}, "tools[0].name"),
        ({"input": "hi", "tools": [{**NAMESPACE, "tools": [3]}]}, "tools[0].tools[0]"),
        ({"input": "hi", "tools": [{**NAMESPACE, "tools": 3}]}, "tools[0].tools"),
        (
            {"input": "hi", "tools": [{"type": "web_search"}], "tool_choice": "required"},
            "tool_choice",
        ),
        ({"input": "hi", "prompt": {"id": "p"}}, "prompt"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 3}]}]},
            "input[0].content[0].text",
        ),
        ({"input": [{"role": "assistant", "content": 3}]}, "input[0].content"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_response_request(Fields(fields), "m")
    assert refused.value.param == param


def test_input_of_left_out_items_only_is_an_empty_message() -> None:
    fields = Fields({"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]})
    (message,) = read_response_request(fields, "m").messages
    assert (message.role, message.text) == ("user", "")
