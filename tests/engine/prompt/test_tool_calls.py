"""Tool calls in replies: each format, cut at every position, and text that resembles a call."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from engine.prompt.tools.calls import MAX_CALL_CHARS, MAX_CALLS, ToolCall, misfit
from engine.prompt.tools.formats import FORMATS, CallFormat
from engine.prompt.tools.json_calls import read_bare
from engine.prompt.tools.split import CallSplitter

BY_NAME = {call_format.name: call_format for call_format in FORMATS}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "t": {"type": "string"}},
            },
        },
    }
    for name in ("f", "get_time", "g-2")
]
Found = tuple[str, list[tuple[str, Any]]]
TEXT = "Let me look."
ONE = [("f", {"a": 1})]

REPLIES: list[tuple[str, str, Found]] = [
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', ("", ONE)),
    ("hermes", f'{TEXT}\n\n<tool_call>{{"name": "f", "arguments": {{"a": 1}}}}</tool_call>\n',
     (TEXT, ONE)),
    ("hermes", '<tool_call>{"name":"f","arguments":"{\\"a\\":1}"}</tool_call> and', ("and", ONE)),
    (
        "hermes",
        '<tool_call>{"name":"f","arguments":{"t":"a </tool_call> b"}}</tool_call>\n'
        '<tool_call>{"name":"g-2"}</tool_call>',
        ("", [("f", {"t": "a </tool_call> b"}), ("g-2", {})]),
    ),
    ("hermes", '<tool_call>{"name":"f","arguments":{"t":"a \\" </tool_call>"}}</tool_call>',
     ("", [("f", {"t": 'a " </tool_call>'})])),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}', ("", ONE)),
    ("hermes", '{"name": "f", "arguments": {"a": 1}}', ("", ONE)),
    ("hermes", '{"name": "f", "arguments": {"a": 1}}\n</tool_call>', ("", ONE)),
    ("hermes", '{"name": "unknown", "arguments": {"a": 1}}',
     ('{"name": "unknown", "arguments": {"a": 1}}', [])),
    ("hermes", '{"name": "f", "arguments": {"a": "x"}}', ('{"name": "f", "arguments": {"a": "x"}}',
                                                          [])),
    ("hermes", '```json\n{\n  "name": "f",\n  "arguments": {"a": 1}\n}\n```', ("", ONE)),
    ("hermes", '{{"name": "f", "arguments": {"a": 1}}}', ("", ONE)),
    ("hermes", '{ { "arguments": {"a": 1}, "name": "f" } }', ("", ONE)),
    ("pairs", '```\n{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}\n```\n',
     ("", ONE)),
    ("pythonic", '{"name": "f", "arguments": {"t": "}}"}}', ("", [("f", {"t": "}}"})])),
    ("hermes", '```json\n{"name": "f", "arguments": {"a": 1}}\n```\nas you see',
     ('```json\n{"name": "f", "arguments": {"a": 1}}\n```\nas you see', [])),
    ("hermes", '```python\nf(a=1)\n```', ('```python\nf(a=1)\n```', [])),
    ("hermes", '{"name": "f"} is an object', ('{"name": "f"} is an object', [])),
    ("hermes", '<tool_call>[{"name": "f", "arguments": {"a": 1}}]</tool_call>', ("", ONE)),
    ("hermes",
     '<tool_call>no</tool_call>then<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>',
    ("nothen", ONE)),
    ("hermes", "a < b <tool_cal b", ("a < b <tool_cal b", [])),
    ("llama", '{"name": "f", "parameters": {"a": 1}}', ("", ONE)),
    ("llama",
     '<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g-2", "parameters": {}}',
     ("", [*ONE, ("g-2", {})])),
    ("llama", '<|python_tag|>f.call(a=1, t="x)")', ("", [("f", {"a": 1, "t": "x)"})])),
    ("llama", f'{TEXT}<|python_tag|>{{"type":"function","name":"f","parameters":{{"a":1}}}}',
     (TEXT, ONE)),
    ("llama", '{"name": "Ann", "age": 3}', ('{"name": "Ann", "age": 3}', [])),
    ("llama", 'See {"name": "f", "parameters": {}}', ('See {"name": "f", "parameters": {}}', [])),
    ("mistral",
     '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, '
     '{"name":"g-2","arguments":{},"id":"abcdefghi"}]',
     ("", [*ONE, ("g-2", {})])),
    ("mistral", f'{TEXT}[TOOL_CALLS] [{{"name": "f", "arguments": {{"a": 1}}}}]', (TEXT, ONE)),
    ("mistral-named", '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g-2[CALL_ID]abcdefghi[ARGS]{}',
     ("", [*ONE, ("g-2", {})])),
    (
        "functions",
        f"{TEXT}\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n"
        "<parameter=t>\n2\n3\n</parameter>\n</function>\n</tool_call>",
        (TEXT, [("f", {"a": 1, "t": "2\n3"})]),
    ),
    ("functions", "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>", ("", ONE)),
    ("functions", "<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
     ("", [("get_time", {})])),
    ("pairs", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
     ("", ONE)),
    ("harmony", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}",
     ("", ONE)),
    ("harmony",
     "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}<|call|>",
    ("", ONE)),
    ("harmony", " to=functions.f<|channel|>commentary<|message|>{\"a\": 1}", ("", ONE)),
    (
        "harmony",
        f"<|channel|>commentary<|message|>{TEXT}<|end|><|start|>assistant"
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}',
        (TEXT, ONE),
    ),
    ("pythonic", '<|tool_call_start|>[f(a=1), get_time(t="x, y)", a=-2)]<|tool_call_end|>Done',
     ("Done", [*ONE, ("get_time", {"t": "x, y)", "a": -2})])),
    ("pythonic", "<|tool_call_start|>[f(a=True, t=[1, {'b': null}])]<|tool_call_end|>",
     ("", [("f", {"a": True, "t": [1, {"b": None}]})])),
    ("pythonic", '<|tool_call_start|>[{"name": "f", "arguments": {"a": 1}}]<|tool_call_end|>',
     ("", ONE)),
]  # fmt: skip


def split(call_format: CallFormat, pieces: list[str]) -> Found:
    splitter = CallSplitter(call_format, TOOLS)
    results = [*map(splitter.push, pieces), splitter.flush()]
    calls = [call for result in results for call in result.calls]
    assert calls == splitter.calls
    return "".join(result.text for result in results), [
        (call.name, json.loads(call.arguments)) for call in calls
    ]


@pytest.mark.parametrize(("name", "reply", "expected"), REPLIES)
def test_a_reply_is_split_alike_wherever_it_is_cut(name: str, reply: str, expected: Found) -> None:
    call_format = BY_NAME[name]
    assert split(call_format, [reply]) == expected
    assert split(call_format, list(reply)) == expected
    for cut in range(1, len(reply)):
        assert split(call_format, [reply[:cut], reply[cut:]]) == expected, reply[:cut]


@pytest.mark.parametrize(("name", "reply", "expected"), [case for case in REPLIES if case[2][1]])
def test_a_call_without_its_end_is_text_if_the_reply_was_cut(
    name: str, reply: str, expected: Found
) -> None:
    for cut in range(1, len(reply)):
        splitter = CallSplitter(BY_NAME[name], TOOLS)
        splitter.push(reply[:cut])
        splitter.flush(is_cut=True)
        calls = [(call.name, json.loads(call.arguments)) for call in splitter.calls]
        assert calls == expected[1][: len(calls)], reply[:cut]


def test_text_that_cannot_be_a_bare_call_is_shown_at_once() -> None:
    splitter = CallSplitter(BY_NAME["hermes"], TOOLS)
    assert [splitter.push(piece).text for piece in ("```", "py", "thon\n")] == ["", "```py", "thon"]
    splitter = CallSplitter(BY_NAME["hermes"], TOOLS)
    assert [splitter.push(piece).text for piece in ("{", '"na', 'tion": ')] == [
        "",
        "",
        '{"nation":',
    ]


def test_under_a_constraint_an_object_is_the_reply() -> None:
    splitter = CallSplitter(BY_NAME["hermes"], TOOLS, only_first=True)
    reply = '{"name": "f", "arguments": {"a": 1}}'
    assert splitter.push(reply).text + splitter.flush().text == reply
    assert splitter.calls == []


@pytest.mark.parametrize(
    ("reply", "doubt"),
    [
        ('{"name": "h", "arguments": {"a": 1}}', "h: there is no tool of this name"),
        ('```json\n{"name": "f", "arguments": {"a": "x"}}\n```', "f: a is of another kind"),
        ('<tool_call>{"name": "f", "arg</tool_call>', "it is not written as a call"),
        ('{"name": "Ann", "age": 3}', ""),
        ('{"name": "f", "arguments": {"a": 1}}', ""),
        ("Nothing to call.", ""),
    ],
)
def test_text_that_resembles_a_call_is_reported(reply: str, doubt: str) -> None:
    splitter = CallSplitter(BY_NAME["hermes"], TOOLS)
    splitter.push(reply)
    splitter.flush()
    assert splitter.doubt == doubt


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"n": 2, "kind": "b", "rest": None}, ""),
        ({"n": 2.0, "more": 1}, ""),
        ({}, "n is missing"),
        ({"n": True}, "n is of another kind"),
        ({"n": 1, "kind": "c"}, "kind is of another kind"),
        ({"n": 1, "rest": []}, "rest is of another kind"),
    ],
)
def test_arguments_fit_the_first_level_of_a_schema(arguments: dict[str, Any], reason: str) -> None:
    properties = {
        "n": {"type": "integer"},
        "kind": {"enum": ["a", "b"]},
        "rest": {"type": ["string", "null"]},
    }
    schema = {"type": "object", "properties": properties, "required": ["n"]}
    assert misfit(ToolCall("f", json.dumps(arguments)), {"f": schema}) == reason


def test_a_closed_schema_accepts_no_other_parameter() -> None:
    closed = {"properties": {"n": {}}, "additionalProperties": False}
    assert misfit(ToolCall("f", '{"n": 1}'), {"f": closed}) == ""
    assert misfit(ToolCall("f", '{"n": 1, "m": 2}'), {"f": closed}) == "it has no parameter m"


@pytest.mark.parametrize("call_format", FORMATS, ids=lambda call_format: call_format.name)
def test_text_before_a_call_is_shown_without_the_marker(call_format: CallFormat) -> None:
    for opening in call_format.openings:
        splitter = CallSplitter(call_format, TOOLS)
        text = splitter.push("Wait a moment, ").text + splitter.push("please").text
        assert text == "Wait a moment, please"
        assert "".join(splitter.push(char).text for char in opening) == ""


HOSTILE = [
    "{" * 5000,
    "[" * 5000 + "(" * 5000,
    '{"name": "f", "arguments": ' + '{"a":' * 3000 + "1" + "}" * 3000 + "}",
    '{"name": "f", "arguments": ' + '{"a":' * 40 + "1" + "}" * 40 + "}",
    '{"name": "../../x y", "arguments": {}}',
    '{"name": "f", "arguments": [1]}',
    '{"name": "f", "arguments": {"a": NaN}}',
    '{"name": "f", "arguments": {"a": ' + "9" * 9000 + "}}",
    '{"name": ["f"]}',
    "[f(a=__import__('os').system('x'))]",
    "[f(**{})]",
    "[f(1)]",
    "f(a=1) if 1 else f(a=2)",
    "[f(a='\\q\\N{x}\0')]",
    "<function=><parameter=>",
    "<function=" * 3000,
    "<arg_key>" * 3000,
    "to=functions." * 1000,
    '"' * 9999,
    "\\" * 9999,
]


@pytest.mark.parametrize("call_format", FORMATS, ids=lambda call_format: call_format.name)
@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: text[:20])
def test_invalid_calls_become_text_without_markers(call_format: CallFormat, hostile: str) -> None:
    for opening in call_format.openings:
        text, calls = split(
            call_format, [opening + hostile[:200], hostile[200:], call_format.closing]
        )
        assert calls == []
        assert not any(
            marker in text
            for marker in (*call_format.openings, call_format.closing)
            if marker and marker != "<function="
        )


def test_an_endless_call_becomes_text_and_parsing_continues() -> None:
    splitter = CallSplitter(BY_NAME["hermes"], TOOLS)
    text = splitter.push('<tool_call>{"name": "f", "arguments": {"t": "').text
    for _ in range(MAX_CALL_CHARS // 1000 + 2):
        text += splitter.push("x" * 1000).text
    assert len(text) > MAX_CALL_CHARS
    assert splitter.push('<tool_call>{"name": "g-2"}</tool_call>').calls[0].name == "g-2"


def test_a_flood_of_calls_is_bounded() -> None:
    splitter = CallSplitter(BY_NAME["hermes"], TOOLS)
    for _ in range(MAX_CALLS + 50):
        splitter.push('<tool_call>{"name": "f"}</tool_call>')
    assert len(splitter.calls) == MAX_CALLS


def test_the_tail_begins_with_the_first_call() -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'
    for pieces in (
        [f"a <tool_call>no</tool_call>b{call}c"],
        list(f"a <tool_call>no</tool_call>b{call}c"),
    ):
        splitter = CallSplitter(BY_NAME["hermes"], TOOLS)
        for piece in pieces:
            splitter.push(piece)
        splitter.flush()
        assert splitter.tail_chars == len(call) + 1


@pytest.mark.parametrize("blank", [" ", "\n"])
def test_an_unclosed_fence_is_parsed_quickly(blank: str) -> None:
    start_s = time.process_time()
    assert read_bare("```json" + blank * 60_000 + '{"name": 1' + blank * 60_000) == []
    assert time.process_time() - start_s < 10
