"""Tests of tools with odd schemas and names: in every API a call that works, or a clear error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.app.server.hostile_values import fault_of
from tests.app.server.tiny_server import tiny_server
from tests.engine import tiny_gguf

N_CTX = 16_384
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
OLLAMA = "/api/chat"
PATHS = (CHAT, RESPONSES, MESSAGES, OLLAMA)
LONGEST_NAME = "n" * 128
LAST_EVENTS = {
    CHAT: "data: [DONE]",
    RESPONSES: "event: response.",
    MESSAGES: "event: message_stop",
    OLLAMA: '"done":true',
}
"""Text near the end of each API's stream."""


def an_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = an_object(a=schema)
    return schema


LIST_END = {"type": "null"}
LINKED = {
    "$ref": "#/$defs/item",
    "$defs": {"item": an_object(next={"anyOf": [LIST_END, {"$ref": "#/$defs/item"}]})},
}
ENDLESS = {
    **an_object(a={"$ref": "#/$defs/item"}),
    "$defs": {"item": an_object(next={"$ref": "#/$defs/item"})},
}
CIRCLE = {
    **an_object(a={"$ref": "#/$defs/b"}),
    "$defs": {"b": {"$ref": "#/$defs/c"}, "c": {"$ref": "#/$defs/b"}},
}

SCHEMAS: dict[str, Any] = {
    "null": None,
    "empty": {},
    "type null": {"type": "null"},
    "type string": {"type": "string"},
    "types": {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}},
    "unknown type": {"type": "cow"},
    "unknown type of a property": an_object(a={"type": "cow"}),
    "unknown types of a property": an_object(a={"type": ["cow", "string"]}),
    "no types of a property": an_object(a={"type": []}),
    "type number": an_object(a={"type": 5}),
    "string or null": an_object(a={"type": ["string", "null"]}),
    "reference": {**an_object(a={"$ref": "#/$defs/b"}), "$defs": {"b": {"enum": ["c"]}}},
    "reference to nothing": an_object(a={"$ref": "#/$defs/b"}),
    "reference to another file": an_object(a={"$ref": "https://a.example/b.json"}),
    "reference of a wrong type": an_object(a={"$ref": 5}),
    "reference to the root": {"type": "object", "properties": {"a": {"$ref": "#"}}},
    "reference to itself": {"$ref": "#"},
    "recursive reference": LINKED,
    "endless reference": ENDLESS,
    "references in a circle": CIRCLE,
    "anyOf": an_object(a={"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    "anyOf of nothing": an_object(a={"anyOf": []}),
    "anyOf of a wrong type": an_object(a={"anyOf": {}}),
    "anyOf at the top": {"anyOf": [an_object(a={"type": "null"}), an_object(b={"const": 1})]},
    "oneOf": an_object(a={"oneOf": [{"type": "integer"}, {"type": "number"}]}),
    "oneOf at the top": {"type": "object", "oneOf": [an_object(a={}), an_object(b={})]},
    "allOf": an_object(a={"allOf": [{"type": "integer"}, {"minimum": 3}]}),
    "allOf of opposites": an_object(a={"allOf": [{"type": "integer"}, {"type": "string"}]}),
    "enum of numbers": an_object(a={"enum": [1, 2.5, -3e10]}),
    "enum of several types": an_object(a={"enum": [1, "1", None, True, [1], {"a": 1}]}),
    "enum of nothing": an_object(a={"enum": []}),
    "enum of a wrong type": an_object(a={"enum": "abc"}),
    "enum against its type": an_object(a={"type": "integer", "enum": ["x"]}),
    "enum of a huge number": an_object(a={"enum": [2**80]}),
    "deep": nested(10),
    "too deep": nested(300),
    "many properties": {"type": "object", "properties": {f"p{n}": {} for n in range(1000)}},
    "too many properties": {"type": "object", "properties": {f"p{n}": {} for n in range(9000)}},
    "properties of a wrong type": {"type": "object", "properties": ["a"]},
    "property of a wrong type": {"type": "object", "properties": {"a": 5, "b": "c", "c": None}},
    "required of a wrong type": {"properties": {"a": {"required": True}}, "required": True},
    "required twice": {"properties": {"a": {"type": "null"}}, "required": ["a", "a"]},
    "required and unknown": {"type": "object", "properties": {}, "required": ["a"]},
    "names of properties": an_object(
        **{name: {"type": "null"} for name in ("a.b", "a-b", "", '"\n', "$ref", "type", "x" * 500)}
    ),
    "pattern that is none": an_object(a={"type": "string", "pattern": "("}),
    "pattern that grows": an_object(a={"type": "string", "pattern": "^(a{1,900}){1,900}$"}),
    "huge limits": an_object(a={"type": "array", "items": {"type": "null"}, "minItems": 10**6}),
    "opposite limits": an_object(a={"type": "integer", "minimum": 5, "maximum": 1}),
    "limit of a wrong type": an_object(a={"type": "integer", "minimum": "5"}),
    "text": '{"type": "object"}',
    "text that is none": "{",
    "true": True,
    "list": [1],
    "number": 5,
}
"""Schemas by what is odd about them."""
REFUSED = {"too many properties", "text that is none", "true", "list", "number"}
"""Schemas that are refused; all others are read as far as they make sense."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    described = tiny_gguf.model("qwen2", context_length=N_CTX, vocabulary="bpe")
    with tiny_server(tmp_path_factory.mktemp("tiny"), described=described) as client:
        yield client


def a_tool(path: str, schema: Any, name: Any = "f") -> dict[str, Any]:
    """Return a tool in the form of an API."""
    definition = {"name": name, "description": "d"}
    if path == MESSAGES:
        return {**definition, "input_schema": schema, "strict": True}
    function = {**definition, "parameters": schema, "strict": True}
    if path == RESPONSES:
        return {"type": "function", **function}
    return {"type": "function", "function": function}


def post(
    client: httpx.Client,
    path: str,
    tools: list[dict[str, Any]],
    *,
    must_call: bool,
    is_streamed: bool = False,
    limit: int = 20,
) -> httpx.Response:
    """Send a question with tools."""
    body: dict[str, Any] = {"model": "m", "tools": tools, "stream": is_streamed}
    if path == RESPONSES:
        body |= {"input": "hi", "max_output_tokens": limit}
    else:
        body["messages"] = [{"role": "user", "content": "hi"}]
    if path == OLLAMA:
        body["options"] = {"num_predict": limit}
    elif path != RESPONSES:
        body["max_tokens"] = limit
    if must_call:
        body["tool_choice"] = {"type": "any"} if path == MESSAGES else "required"
    return client.post(path, content=json.dumps(body))


def calls_of(path: str, answer: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return names and arguments of the calls in an answer."""
    if path == MESSAGES:
        blocks = [block for block in answer["content"] if block["type"] == "tool_use"]
        return [(block["name"], block["input"]) for block in blocks]
    if path == RESPONSES:
        items = [item for item in answer["output"] if item["type"] == "function_call"]
        return [(item["name"], json.loads(item["arguments"])) for item in items]
    if path == OLLAMA:
        functions = [call["function"] for call in answer["message"].get("tool_calls", ())]
        return [(function["name"], function["arguments"]) for function in functions]
    message = answer["choices"][0]["message"]
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_every_schema_is_read_or_refused(tiny: httpx.Client, path: str) -> None:
    for label, schema in SCHEMAS.items():
        tools = [a_tool(path, schema)]
        for must_call in (False, True):
            answer = post(tiny, path, tools, must_call=must_call, is_streamed=must_call)
            assert not fault_of(path, answer.status_code, answer.text), (label, answer.text[:500])
            expected_status = 400 if label in REFUSED else 200
            assert answer.status_code == expected_status, (label, answer.text[:500])
            if must_call and expected_status == 200:
                assert LAST_EVENTS[path] in answer.text[-2000:], (label, answer.text[-500:])


WORKING: list[tuple[Any, Callable[[Any], bool]]] = [
    (None, lambda values: isinstance(values, dict)),
    (an_object(), lambda values: values == {}),
    (an_object(a={"type": ["boolean", "null"]}), lambda values: values["a"] in (True, False, None)),
    (SCHEMAS["reference"], lambda values: values == {"a": "c"}),
    (an_object(a={"enum": [1, 2.5, -3e10]}), lambda values: values["a"] in (1, 2.5, -3e10)),
    (an_object(a={"enum": [7], "type": "cow"}), lambda values: values == {"a": 7}),
    (an_object(a={"oneOf": [{"const": 1}, {"const": 2}]}), lambda values: values["a"] in (1, 2)),
    (an_object(a={"allOf": [{"const": 5}, {"minimum": 3}]}), lambda values: values == {"a": 5}),
    (an_object(a={"anyOf": [{"const": 5}, LIST_END]}), lambda values: values["a"] in (5, None)),
    (LINKED, lambda values: "next" in values),
    (an_object(**{"a.b-c": LIST_END}), lambda values: values == {"a.b-c": None}),
]
"""Schemas, each with a test of the arguments that a model may then write."""


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_required_call_fits_an_odd_schema(tiny: httpx.Client, path: str) -> None:
    for schema, fits in WORKING:
        answer = post(tiny, path, [a_tool(path, schema)], must_call=True, limit=900)
        calls = calls_of(path, answer.json())
        if not calls and schema in (None, LINKED):
            continue  # A model with random weights may never end such arguments.
        assert [name for name, _ in calls] == ["f"], (schema, answer.text)
        assert fits(calls[0][1]), (schema, calls)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_a_call_that_a_limit_cuts_is_not_a_call(tiny: httpx.Client, path: str) -> None:
    tools = [a_tool(path, an_object(a={"const": "x" * 50}))]
    for limit in range(15, 45):
        answer = post(tiny, path, tools, must_call=path != OLLAMA, limit=limit).json()
        assert all(values == {"a": "x" * 50} for _, values in calls_of(path, answer)), answer


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_every_name_of_a_tool_works_or_is_refused(tiny: httpx.Client, path: str) -> None:
    schema = an_object(a={"const": 1})
    for names in (["a.b-c_d.9"], ["..."], [LONGEST_NAME], ["f", "f"], ["null"]):
        tools = [a_tool(path, schema, name) for name in names]
        answer = post(tiny, path, tools, must_call=True, limit=300)
        assert answer.status_code == 200
        if path != OLLAMA:  # It has no choice of tools.
            assert calls_of(path, answer.json()) == [(names[0], {"a": 1})], answer.text
    for name in ("n" * 129, "a b", "a/b", "é", "", 5, None, ["f"]):
        answer = post(tiny, path, [a_tool(path, schema, name)], must_call=False)
        assert answer.status_code == 400
        assert not fault_of(path, answer.status_code, answer.text)
        assert "name" in answer.text
