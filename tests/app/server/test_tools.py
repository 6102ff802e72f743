"""Tests of tools over the API with the official client, and of refusals that name the field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from app.forms.answer_form import GRAMMAR, REGEX, SCHEMA, AnswerForm
from app.forms.constraint import Forms
from app.forms.process import FormLimits
from app.server.api_error import ApiError
from app.server.dialects.openai_request import read_chat_request
from app.server.fields import Fields
from app.server.message_fields import Tools
from app.server.reply_form import call_form, reply_form
from engine.prompt.tools.calls import is_deep
from engine.prompt.tools.formats import FORMATS, CallFormat
from engine.prompt.tools.split import CallSplitter
from tests.app.fake_engine import Script
from tests.app.server.serving import Serving, serving
from tests.app.server.test_api import client_of, events_of
from tests.engine.prompt.test_chat_prompt import BYTES

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ASKED: list[Any] = [{"role": "user", "content": "How is Paris?"}]
CALL_PIECES = [
    "\n<tool",
    "_call>",
    '{"name": "get_',
    'weather", "argu',
    'ments": {"city": "Paris"}}',
    "</tool_call>",
]
SAYS_CALL = ["Let", " me.", *CALL_PIECES]


@pytest.fixture
def script() -> Script:
    return Script(replies=[SAYS_CALL, ["Rain", "."]])


def calls_of(chunks: list[Any]) -> dict[int, dict[str, str]]:
    """Join deltas of calls as clients do."""
    calls: dict[int, dict[str, str]] = {}
    for chunk in chunks:
        for delta_call in chunk.choices[0].delta.tool_calls or []:
            call = calls.setdefault(delta_call.index, {"id": "", "name": "", "arguments": ""})
            call["id"] += delta_call.id or ""
            call["name"] += delta_call.function.name or ""
            call["arguments"] += delta_call.function.arguments or ""
    return calls


def test_a_call_and_its_result_go_there_and_back(server: Serving) -> None:
    client = client_of(server)
    tools: Any = [TOOL]
    first = client.chat.completions.create(model="m", messages=ASKED, tools=tools)
    message = first.choices[0].message
    assert (first.choices[0].finish_reason, message.content) == ("tool_calls", "Let me.")
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == (
        "get_weather",
        {"city": "Paris"},
    )
    messages = [*ASKED, message, {"role": "tool", "tool_call_id": call.id, "content": "Rain"}]
    second = client.chat.completions.create(model="m", messages=messages, tools=tools)
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("Rain.", "stop")
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.prompt_tokens_details is not None
    # The tokens of the prompt and of the reply with its call were cached.
    n_cached = second.usage.prompt_tokens_details.cached_tokens
    assert n_cached == first.usage.prompt_tokens + first.usage.completion_tokens


def test_a_streamed_call_comes_as_deltas_after_its_text(server: Serving) -> None:
    stream = client_of(server).chat.completions.create(
        model="m", messages=ASKED, tools=[TOOL], stream=True
    )  # type: ignore[call-overload]
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "Let me."
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "tool_calls"
    (call,) = calls_of(chunks).values()
    assert (call["name"], json.loads(call["arguments"]), len(call["id"])) == (
        "get_weather",
        {"city": "Paris"},
        9,
    )


def test_several_calls_are_numbered_unless_one_is_requested(server: Serving) -> None:
    call = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
    server.script.replies = [[call, call]]
    body = {"messages": ASKED, "tools": [TOOL], "stream": True}
    events = events_of(server.post("/v1/chat/completions", body).text)
    deltas = [event["choices"][0]["delta"].get("tool_calls", []) for event in events]
    assert [call["index"] for delta in deltas for call in delta] == [0, 1]
    complete = server.post(
        "/v1/chat/completions", {**body, "stream": False, "parallel_tool_calls": False}
    ).json()
    assert len(complete["choices"][0]["message"]["tool_calls"]) == 1


def test_without_tools_or_with_choice_none_the_reply_is_text(server: Serving) -> None:
    for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        server.script.replies = [SAYS_CALL]
        choice = server.chat(**fields).json()["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert "<tool_call>" in choice["message"]["content"]
    tools = server.script.opened[0].chats[0].tools  # the model still knows them
    assert [tool["function"]["name"] for tool in tools] == ["get_weather"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_fenced_object_is_a_call_and_a_mismatch_is_reported(
    server: Serving, stream: bool
) -> None:
    fenced = [
        "```",
        "json\n",
        '{"name": "get_',
        'weather", "arguments": {"city": "Paris"}}',
        "\n```",
    ]
    wrong = [piece.replace("city", "town") for piece in fenced]
    server.script.replies = [fenced, wrong]
    outcomes = []
    for _ in range(2):
        answer = server.chat(tools=[TOOL], stream=stream)
        if stream:
            choices = [event["choices"][0] for event in events_of(answer.text)]
            text = "".join(choice["delta"].get("content", "") for choice in choices)
            calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
        else:
            choices = answer.json()["choices"]
            text = choices[-1]["message"]["content"] or ""
            calls = choices[-1]["message"].get("tool_calls", [])
        names = [call["function"]["name"] for call in calls]
        outcomes.append((choices[-1]["finish_reason"], names, text, choices[-1].get("not_a_call")))
    assert outcomes == [
        ("tool_calls", ["get_weather"], "", None),
        ("stop", [], "".join(wrong), "get_weather: city is missing"),
    ]


def test_a_model_without_tools_says_so_and_the_log_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(monkeypatch, Script(replies=[["Hi."]], calls_like="")) as served:
        assert (
            served.chat(tools=[TOOL], tool_choice="none").json()["choices"][0]["message"]["content"]
            == "Hi."
        )
        for _ in range(2):
            error = served.chat(tools=[TOOL]).json()["error"]
            assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
            assert "chat template of this model has no tools" in error["message"]
    assert capsys.readouterr().err.count("template has no tools") == 1


def test_a_thought_before_a_call_is_separate(server: Serving) -> None:
    server.script.replies = [["<think>", "hm", "</think>", *CALL_PIECES]]
    message = server.chat(tools=[TOOL]).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (None, "hm")
    assert message["tool_calls"][0]["function"]["name"] == "get_weather"


def test_an_incomplete_call_is_not_a_call(server: Serving) -> None:
    choice = server.chat(tools=[TOOL], max_tokens=5).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]


def test_a_call_that_repeats_itself_is_not_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    words = [f"{word} " for word in ("round", "and", "about", "it", "goes")]
    opening = "<tool_call>\n<function=get_weather>\n<parameter=city>\n"
    script = Script(replies=[[opening, *words * 100]], calls_like="<function=")
    with serving(monkeypatch, script) as served:
        answer = served.chat(tools=[TOOL]).json()
    assert answer["usage"]["completion_tokens"] < 200
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "tool_calls" not in answer["choices"][0]["message"]


def assistant(**fields: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **fields}


def tool(**fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c1", "content": "x", **fields}


def a_call(**fields: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}", **fields}}


def a_tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


DEEP: dict[str, Any] = {}
for _ in range(50):
    DEEP = {"type": "object", "properties": {"a": DEEP}}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": "x"}, "tools"),
    ({"tools": [a_tool()] * 129}, "tools"),
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [a_tool(name="a b")]}, "tools[0].function.name"),
    ({"tools": [a_tool(name="<|im_end|>")]}, "tools[0].function.name"),
    ({"tools": [a_tool(name="x" * 129)]}, "tools[0].function.name"),
    ({"tools": [a_tool(description=5)]}, "tools[0].function.description"),
    ({"tools": [a_tool(parameters=[1])]}, "tools[0].function.parameters"),
    ({"tools": [a_tool(parameters="x")]}, "tools[0].function.parameters"),
    ({"tools": [a_tool(description="x" * 300_000)]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [a_tool()], "tool_choice": "g"}, "tool_choice"),
    ({"tools": [a_tool()], "tool_choice": 5}, "tool_choice"),
    ({"tools": [a_tool()], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
    ({"tools": [a_tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}},
     "tool_choice.function.name"),
    ({"tools": [a_tool()], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ({"messages": [*ASKED, assistant()]}, "messages"),
    ({"messages": [*ASKED, assistant(), tool(tool_call_id=[5])]}, "messages[2].tool_call_id"),
    ({"messages": [*ASKED, assistant(tool_calls=["f"]), tool()]}, "messages[1].tool_calls[0]"),
    ({"messages": [*ASKED, assistant(tool_calls=[a_call(name=5)]), tool()]},
     "messages[1].tool_calls[0].function.name"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_wrong_tools_are_refused_by_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_chat_request(Fields({"messages": ASKED, **fields}), "m")
    assert refused.value.param == param
    assert refused.value.status == 400
    assert "\x1b" not in refused.value.message


@pytest.mark.parametrize(
    ("parameters", "read"),
    [
        ([], {"type": "object", "properties": {}}),
        ("", {"type": "object", "properties": {}}),
        ('{"type": "object"}', {"type": "object"}),
        ({"properties": None, "required": None}, {}),
        ({"properties": [], "required": "a"}, {}),
        (
            {"properties": {"a": True}, "required": ["a", 5]},
            {"properties": {"a": True}, "required": ["a"]},
        ),
        ({"type": ["object", "null"]}, {"type": ["object", "null"]}),
        ({"title": "\ud800"}, {"title": "\ufffd"}),
    ],
)
def test_odd_parameters_of_a_tool_are_read_as_a_schema(
    parameters: Any, read: dict[str, Any]
) -> None:
    tools = [a_tool(parameters=parameters), {"name": "g", "input_schema": parameters}]
    request = read_chat_request(Fields({"messages": ASKED, "tools": tools}), "m")
    assert request.tools is not None
    assert [tool["function"]["parameters"] for tool in request.tools.definitions] == [read, read]


def test_deeply_nested_parameters_are_cut() -> None:
    fields = Fields({"messages": ASKED, "tools": [a_tool(parameters=DEEP)]})
    request = read_chat_request(fields, "m")
    assert request.tools is not None
    assert not is_deep(request.tools.definitions[0]["function"]["parameters"])
    assert fields.ignored == {"parameters of tool f beyond a depth of 32"}


def test_only_the_first_of_two_equal_tool_names_is_used() -> None:
    fields = Fields(
        {"messages": ASKED, "tools": [a_tool(description="first"), a_tool(description="second")]}
    )
    request = read_chat_request(fields, "m")
    assert request.tools is not None
    assert [tool["function"]["description"] for tool in request.tools.definitions] == ["first"]
    assert fields.ignored == {"a second tool f"}


@pytest.mark.parametrize(
    ("written_name", "name"),
    [
        ("functions.look_up:0", "functions.look_up_0"),
        ("look up", "look_up"),
        ("x" * 200, "x" * 128),
        ("", "unknown"),
        (None, "unknown"),
        ("\x1b[31m\ud800", "_31m_"),
    ],
)
def test_a_call_in_the_history_gets_the_nearest_legal_name(
    written_name: str | None, name: str
) -> None:
    call = assistant(tool_calls=[a_call(name=written_name)])
    history = [*ASKED, call, tool(content="error"), *ASKED]
    messages = read_chat_request(Fields({"messages": history}), "m").messages
    assert (messages[1].calls[0].name, messages[2].results[0].name) == (name, name)


@pytest.mark.parametrize(
    ("arguments", "read"),
    [
        ("[]", {}),
        ([], {}),
        ("", {}),
        ("{", {"arguments": "{"}),
        ("[1]", {"arguments": [1]}),
        ("5", {"arguments": 5}),
        (5, {"arguments": 5}),
        ('"a"', {"arguments": "a"}),
        ('{"a": NaN}', {"arguments": '{"a": NaN}'}),
        ("[" * 9999, {"arguments": "[" * 9999}),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_arguments_in_the_history_become_an_object(arguments: Any, read: dict[str, Any]) -> None:
    history = [*ASKED, assistant(tool_calls=[a_call(arguments=arguments)]), tool()]
    assert read_chat_request(Fields({"messages": history}), "m").messages[1].calls[0].values == read


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"degrees": 18}, '{"degrees": 18}'),
        ([{"degrees": 18}], '[{"degrees": 18}]'),
        ([1, None], "[1, null]"),
        (18, "18"),
        (True, "true"),
        (None, ""),
        (
            [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {}},
                {"type": "text"},
            ],
            "a",
        ),
        ("\ud800", "\ufffd"),
    ],
)
def test_the_result_of_a_tool_may_be_any_value(content: Any, text: str) -> None:
    history = [*ASKED, assistant(), tool(content=content)]
    assert read_chat_request(Fields({"messages": history}), "m").messages[2].results[0].text == text


@pytest.mark.parametrize(
    "calls", [[None], [{"id": 5, "name": "f", "arguments": {}}], [{}], None, []]
)
def test_calls_in_the_history_may_be_incomplete(calls: Any) -> None:
    history = [*ASKED, assistant(tool_calls=calls, content="So."), tool(tool_call_id=5), *ASKED]
    assert read_chat_request(Fields({"messages": history}), "m").messages[0].text == "How is Paris?"


@pytest.mark.parametrize(
    ("choice", "must", "offered"),
    [
        (None, (), 2),
        ("", (), 2),
        ("g", ("g",), 2),
        ({"type": "tool", "name": "g"}, ("g",), 2),
        ({"name": "g"}, ("g",), 2),
        ({"type": "function", "function": "g"}, ("g",), 2),
        ({"type": "none"}, (), 2),
        ({"type": "allowed_tools", "mode": "any", "tools": ["g"]}, ("g",), 1),
        ("any", ("f", "g"), 2),
        ({"type": "any"}, ("f", "g"), 2),
        ({"type": "auto"}, (), 2),
        ({"type": "function", "name": "g"}, ("g",), 2),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [a_tool(name="g")]},
            },
            ("g",),
            1,
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            (),
            1,
        ),
        ({"type": "web_search"}, (), 2),
    ],
)
def test_tool_choice_is_read_in_every_dialect(
    choice: Any, must: tuple[str, ...], offered: int
) -> None:
    tools = [a_tool(), {"type": "function", "name": "g", "parameters": {}, "strict": None}]
    request = read_chat_request(
        Fields({"messages": ASKED, "tools": tools, "tool_choice": choice}), "m"
    )
    assert request.tools is not None
    assert (request.tools.required_names, len(request.tools.definitions)) == (must, offered)
    assert request.tools.definitions[0]["function"]["parameters"] in (
        {"type": "object", "properties": {}},
        {},
    )


@pytest.mark.parametrize("arguments", ["", "null", None, {}, " {} "])
def test_missing_arguments_are_read_in_every_format(arguments: Any) -> None:
    messages = [*ASKED, assistant(tool_calls=[a_call(arguments=arguments)]), tool()]
    assert read_chat_request(Fields({"messages": messages}), "m").messages[1].calls[
        0
    ].arguments in (
        "{}",
        " {} ",
    )


CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "n": {"type": "integer"},
    },
    "required": ["city", "unit", "n"],
    "additionalProperties": False,
}
GOOD = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"city": "Rome", "unit": "C", "n": 3}}\n'
    "</tool_call>",
    "llama": '{"name": "f", "parameters": {"city": "Rome", "unit": "C", "n": 3}}',
    "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {"city": "Rome", "unit": "C", "n": 3}}]',
    "mistral-named": '[TOOL_CALLS]f[ARGS]{"city": "Rome", "unit": "C", "n": 3}',
    "functions": "<tool_call>\n<function=f>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=unit>\nC\n</parameter>\n"
    "<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
    "pairs": "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>unit</arg_key>\n"
    "<arg_value>C</arg_value>\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "harmony": "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    '{"city": "Rome", "unit": "C", "n": 3}',
    "pythonic": '<|tool_call_start|>[f(city="Rome", unit="C", n=3)]<|tool_call_end|>',
}


REFERRING = {
    "$schema": "http://somewhere/else",
    "$defs": {
        "unit": {"enum": ["C", "F"]},
        "more": {"anyOf": [{"$ref": "#/$defs/more"}, {"$ref": "#/definitions/n"}]},
    },
    "definitions": {"n": {"type": "integer", "format": "nobody-knows"}},
    "properties": {
        "city": {"type": "string", "format": "town"},
        "unit": {"$ref": "#/$defs/unit"},
        "n": {"$ref": "#/$defs/more"},
    },
    "required": ["city", "unit", "n"],
    "additionalProperties": False,
}
"""Equivalent schema as schema generators write it, with references and additional keywords."""
FORM = AnswerForm(
    SCHEMA,
    '{"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}',
    "form",
)


@pytest.fixture(scope="module")
def forms() -> Iterator[Forms]:
    all_forms = Forms(BYTES)
    yield all_forms
    all_forms.close()


def tools_of(*schemas: Any, **options: Any) -> Tools:
    definitions = tuple(
        {
            "type": "function",
            "function": {"name": "fgh"[index], "description": "", "parameters": schema},
        }
        for index, schema in enumerate(schemas)
    )
    return Tools(definitions, **options)


def fits(forms: Forms, form: AnswerForm, *texts: str) -> list[bool]:
    """Whether a reply may be each of the texts, token by token, and end after it.

    One process checks all texts.
    """
    ends = sorted(BYTES.end_ids)
    tokens = [[*BYTES.encode(text, bos=False, special=True), ends] for text in texts]
    constraint = forms.constraint(form)
    accepted = dict[str, bool]()
    for index, token in enumerate(tokens[0]):
        allowed = constraint.allowed()
        for text, other_tokens in zip(texts, tokens, strict=True):
            if other_tokens[:index] == tokens[0][:index] and not allowed[other_tokens[index]].all():
                accepted[text] = False
        if texts[0] in accepted or token is ends:
            break
        constraint.accept(token)
    constraint.close()
    accepted.setdefault(texts[0], True)
    if remaining := [text for text in texts if text not in accepted]:
        accepted.update(zip(remaining, fits(forms, form, *remaining), strict=True))
    return [accepted[text] for text in texts]


@pytest.mark.parametrize(
    ("call_format", "parameters"),
    [*((call_format, CITY) for call_format in FORMATS), (FORMATS[3], REFERRING)],
)
def test_a_required_call_allows_nothing_else(
    forms: Forms, call_format: CallFormat, parameters: Any
) -> None:
    tools = tools_of(parameters, required_names=("f",), single_call=True)
    form = call_form(BYTES, tools, call_format)
    good = GOOD[call_format.name]
    wrong = good.replace("f", "g", 1), good.replace("3", '"x"'), "Sure, I will", ""
    assert fits(forms, form, good, *wrong) == [True, False, False, False, False]
    splitter = CallSplitter(call_format, tools.definitions)
    calls = [*splitter.push(good).calls, *splitter.flush().calls]
    assert [(call.name, call.values) for call in calls] == [
        ("f", {"city": "Rome", "unit": "C", "n": 3})
    ]


NEXT_TO_A_FORM = [
    call_format for call_format in FORMATS if call_format.name in ("hermes", "llama", "mistral")
]
"""Call formats of three types: with an end of each call, starting like a form, and with a list."""


@pytest.mark.parametrize("call_format", NEXT_TO_A_FORM, ids=lambda call_format: call_format.name)
def test_a_reply_with_tools_is_a_call_or_matches_its_form(
    forms: Forms, call_format: CallFormat
) -> None:
    tools = tools_of(CITY, {})
    form = reply_form(BYTES, FORM, tools, call_format)
    assert form is not None
    good = GOOD[call_format.name]
    twice = f"{good}\n{good}"
    replies = good, '{"x": 3}', "Sure", f'{good}{{"x": 3}}', twice
    assert fits(forms, form, *replies) == [True, True, False, False, bool(call_format.closing)]
    one_call = reply_form(BYTES, FORM, replace(tools, single_call=True), call_format)
    assert one_call is not None
    assert fits(forms, one_call, twice) == [False]
    assert reply_form(BYTES, None, tools, call_format) is None
    assert reply_form(BYTES, FORM, None, None) is FORM


@pytest.mark.parametrize(
    ("syntax", "text", "reply"),
    [
        (REGEX, "yes/no", "yes/no"),
        (GRAMMAR, 'start: A\nA: "x"', "x"),
        (GRAMMAR, 'root ::= "y" | [0-9]', "7"),
    ],
)
def test_every_syntax_of_form_works_with_tools(
    forms: Forms, syntax: str, text: str, reply: str
) -> None:
    form = reply_form(BYTES, AnswerForm(syntax, text, "form"), tools_of(CITY), FORMATS[3])
    assert form is not None
    assert fits(forms, form, reply, GOOD["hermes"], "no") == [True, True, False]


def test_a_required_call_replaces_the_form(forms: Forms) -> None:
    form = reply_form(BYTES, FORM, tools_of(CITY, required_names=("f",)), FORMATS[3])
    assert form is not None
    assert fits(forms, form, GOOD["hermes"], '{"x": 3}') == [True, False]


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_text_like_a_call_within_a_form_stays_text(size: int) -> None:
    call_format = FORMATS[3]
    tools = tools_of(CITY)
    for text, n_calls in (
        (f'{{"x": "{GOOD["hermes"]}"}}', 0),
        (f" {GOOD['hermes']}\n{GOOD['hermes']}", 2),
    ):
        splitter = CallSplitter(call_format, tools.definitions, only_first=True)
        starts = range(0, len(text), size)
        results = [splitter.push(text[start : start + size]) for start in starts]
        results.append(splitter.flush())
        assert len(splitter.calls) == n_calls
        assert "".join(result.text for result in results) == (text if n_calls == 0 else "")


ODD: list[tuple[dict[str, Any], str]] = [
    ({"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}, "uniqueItems"),
    ({"a": {"type": "string", "not": {"const": ""}}}, "not"),
    ({"a": {"type": "string", "pattern": "^(?!x).+$"}}, "pattern"),
    ({"a": {"$ref": "https://schemas.example/t.json"}}, "$ref"),
    ({"a": {"$ref": "#/nowhere"}}, "$ref"),
    ({"a": {"type": "object", "propertyNames": {"maxLength": 3}}}, "propertyNames"),
    ({"a": {"type": "array", "contains": {"const": 1}, "minContains": 2}}, "contains, minContains"),
    ({"a": {"type": "object", "dependentSchemas": {"b": {"required": ["c"]}}}}, "dependentSchemas"),
    ({"a": {"enum": [2**70 + 2**40]}}, "enum"),
    (
        {"a": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 9}]}},
        "combinations of keywords",
    ),
    ({"a": {"allOf": [{"type": "string"}, {"type": "integer"}]}}, "parameters"),
    ({"a": {"type": "string", "minLength": 5, "maxLength": 2}}, "parameters"),
]
"""Properties that a form can only partly enforce, and the names of the parts left out."""


@pytest.mark.parametrize(("properties", "dropped"), ODD)
def test_odd_tool_schemas_are_enforced_partly(
    forms: Forms, properties: dict[str, Any], dropped: str
) -> None:
    odd = {"type": "object", "properties": properties, "required": ["a"]}
    tools = tools_of(CITY, odd, required_names=("f", "g"), single_call=True)
    constraint = forms.constraint(call_form(BYTES, tools, FORMATS[3]))
    assert constraint.notes == [f"tool g: {dropped}"]
    constraint.close()
    either = reply_form(BYTES, FORM, tools_of(odd), FORMATS[3])
    assert either is not None
    assert fits(forms, either, '{"x": 3}', "Sure") == [True, False]


@pytest.mark.parametrize("call_format", FORMATS, ids=lambda call_format: call_format.name)
def test_arguments_of_an_odd_schema_stay_unchanged(forms: Forms, call_format: CallFormat) -> None:
    schema = {
        **CITY,
        "not": {"required": ["x"]},
        "properties": {**CITY["properties"], "n": {"$ref": "https://a.b"}},
    }
    form = call_form(BYTES, tools_of(schema, required_names=("f",), single_call=True), call_format)
    assert fits(
        forms, form, GOOD[call_format.name], GOOD[call_format.name].replace("f", "g", 1)
    ) == [True, False]


def test_a_slow_tool_schema_is_left_out() -> None:
    slow = {
        "type": "object",
        "properties": {"a": {"type": "integer", "multipleOf": 1000003}},
        "required": ["a"],
    }
    impatient = Forms(BYTES, FormLimits(compile_cpu_s=0.3))
    form = call_form(BYTES, tools_of(slow, required_names=("f",), single_call=True), FORMATS[3])
    constraint = impatient.constraint(form)
    assert "parameters of all tools" in constraint.notes
    constraint.close()
    impatient.close()
