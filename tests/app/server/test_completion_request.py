"""Tests of the fields of a request: valid values, and refusals that name the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.conversations.conversation import PromptMessage
from app.forms.answer_form import AnswerForm
from app.server.api_error import MAX_CHARS, ApiError
from app.server.completion_request import (
    MAX_TOKENS,
    CompletionRequest,
)
from app.server.dialects import ollama
from app.server.dialects.ollama import read_generate_request
from app.server.dialects.openai_request import read_chat_request, read_completion_request
from app.server.dialects.responses_request import read_response_request
from app.server.fields import MAX_IGNORED, Fields, read_json
from app.server.form_fields import read_form
from app.server.sampling_fields import resolved
from app.text.clean_text import clean_text
from tests.app.server.odd_requests import damaged, odd, odd_response

HI = [{"role": "user", "content": "hi"}]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
INFINITE = float("inf")
NO_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x"}}
WRONG: dict[str, list[Any]] = {
    "temperature": [-1, 101, "1", True, [], {}, INFINITE, float("nan")],
    "top_p": [-0.1, 1.1, "1", False],
    "min_p": [2],
    "top_k": [-2, 1.5, "4", True],
    "repeat_penalty": [0, 101],
    "repetition_penalty": [0, "1"],
    "repeat_last_n": [-2],
    "typical_p": [1.5, "1"],
    "xtc_probability": [2],
    "dry_multiplier": [-1, True],
    "dry_sequence_breakers": ["x", [1], ["x" * 101], ["x"] * 65],
    "ignore_eos": [1, "true"],
    "seed": [2**64, 1.5, "1", True, []],
    "max_tokens": [0, 1.5, "5", True, []],
    "stop": [["a"] * 65, [1], 5, "x" * 1001, {}],
    "stream": [1, "true", []],
    "stream_options": [True, [], {"include_usage": 1}],
    "n": [9, 0, "1", 1.5, True],
    "logit_bias": [
        5, "50", [50], [[50]], [[50, 1, 2]], {"50": "1"}, {"50": True}, {"50": None}, [[1.5, 1]],
        [[True, 1]],
        {"50": 2e9}, {"50": INFINITE}, {"50": float("nan")}, [[1, 1]] * 10_001,
    ],
    "presence_penalty": [101, "0", False],
    "frequency_penalty": [-101],
    "grammar": [3],
    "response_format": [
        "text", {"type": "xml"}, {}, {"type": "json_schema"}, NO_SCHEMA,
        {**NO_SCHEMA, "json_schema": {"schema": "x"}},
        {"type": "regex"}, {"type": "regex", "pattern": 5},
        {"type": "regex", "pattern": "a" * 70_000},
        {"type": "grammar"}, {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}},
    ],
    "model": [5, []],
    "functions": [[{}]],
}  # fmt: skip
WRONG_IN_CHATS: dict[str, list[Any]] = {
    "messages": [None, [], {}, "hi", ["hi"], [None], HI * 100_001],
    "logprobs": [1, "true"],
    "top_logprobs": [-1, 21, True],
    "tools": [[{"type": "function"}], {}],
    "tool_choice": ["required", {"type": "function"}],
    "reasoning_effort": ["much", 1],
    "chat_template_kwargs": [[], {"enable_thinking": "yes"}],
    "modalities": [["text", "audio"], "text"],
}
WRONG_IN_TEXTS: dict[str, list[Any]] = {
    "prompt": [
        None,
        "",
        [],
        [""],
        5,
        {},
        [1, "a"],
        [-1],
        [True],
        ["a", ""],
        [[1], []],
        [1.0],
        ["a"] * 9,
    ],
    "logprobs": [-1, 21, True, "1"],
    "echo": [True, 1],
    "best_of": [2, True],
    "suffix": [["end"], 3, True],
}
WRONG_MESSAGES: list[tuple[Any, str]] = [
    ({"role": "user"}, "messages[0].content"),
    ({"content": "hi"}, "messages[0].role"),
    ({"role": "robot", "content": "hi"}, "messages[0].role"),
    ({"role": ["user"], "content": "hi"}, "messages[0].role"),
    ({"role": "user", "content": 5}, "messages[0].content"),
    ({"role": "user", "content": [5]}, "messages[0].content[0]"),
    ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0].image_url"),
    ({"role": "user", "content": [{"text": 5}]}, "messages[0].content[0].text"),
    ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[0].content[0].type"),
    ({"role": "assistant", "content": "hi", "tool_calls": [[]]}, "messages[0].tool_calls[0]"),
    ({"role": "assistant", "content": True}, "messages[0].content"),
]


def fields_of(values: dict[str, Any]) -> Fields:
    """Return fields as HTTP would deliver them, unless they have no JSON."""
    try:
        return read_json(json.dumps(values, allow_nan=False).encode())
    except ValueError:
        return Fields(values)


def outcome(read: Callable[[], Any]) -> tuple[Any, ApiError | None]:
    """Return the request or its refusal. Other exceptions are faults."""
    try:
        return read(), None
    except ApiError as error:
        return None, error


def is_line(text: str) -> bool:
    """Whether a text is safe for a terminal and has one line."""
    return len(text) <= MAX_CHARS and "\n" not in text and clean_text(text) == text


def test_several_prompts_are_continued_separately() -> None:
    request = read_completion_request(Fields({"prompt": ["a", [1, 2]], "n": 2}), "m")
    assert [request.for_reply(index).prompt for index in range(request.n_replies)] == [
        "a",
        "a",
        (1, 2),
        (1, 2),
    ]
    with pytest.raises(ApiError, match="at most 8 texts"):
        read_completion_request(Fields({"prompt": ["a"] * 5, "n": 2}), "m")


def require_refused(
    read: Callable[..., Any], needed: dict[str, Any], *tables: dict[str, list[Any]]
) -> None:
    for name, value in (
        (name, value) for table in tables for name, values in table.items() for value in values
    ):
        fields = fields_of({**needed, name: value})
        request, refused = outcome(lambda: read(fields, "m"))  # noqa: B023 - called at once
        assert refused is not None, (name, value, request)
        assert (refused.param or "").startswith(name)
        assert name in refused.message
        assert is_line(refused.message)


def test_a_wrong_field_is_refused_by_its_name() -> None:
    require_refused(read_chat_request, {"messages": HI}, WRONG, WRONG_IN_CHATS)
    limits = {"max_tokens": WRONG["max_tokens"][1:]}  # 0 counts the prompt
    require_refused(read_completion_request, {"prompt": "hi"}, WRONG | limits, WRONG_IN_TEXTS)
    require_refused(
        read_chat_request,
        {"messages": HI, "response_format": {"type": "json_object"}},
        {"grammar": ["start: X"]},
    )


@pytest.mark.parametrize(
    ("value", "form"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, ("schema", '{"type":"object"}')),
        ({"type": "json_object", "schema": {"type": "null"}}, ("schema", '{"type": "null"}')),
        ({"type": "regex", "pattern": "a+"}, ("regex", "a+")),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {}}},
            ("schema", "{}"),
        ),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, ("grammar", 'root ::= "a"')),
    ],
)
def test_forms_are_read(value: Any, form: tuple[str, str] | None) -> None:
    assert read_form(Fields({"response_format": value})) == (
        AnswerForm(*form, "response_format") if form else None
    )
    assert read_form(Fields({"grammar": "start: X"})) == AnswerForm(
        "grammar", "start: X", "grammar"
    )
    assert read_form(Fields({"grammar": ""})) is None


RED = {"enum": ["red"]}
CHOICE = 'start: "a" | "b"'
FORMS: list[tuple[dict[str, Any], tuple[str, Any, str]]] = [
    ({"response_format": {"type": "json_schema", "schema": RED}},
     ("schema", RED, "response_format")),
    ({"response_format": {"type": "json_schema", "json_schema": RED | {"type": "string"}}},
     ("schema", RED | {"type": "string"}, "response_format")),
    ({"response_format": {"type": "json_schema", "value": {"name": "x", "schema": RED}}},
     ("schema", RED, "response_format")),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": json.dumps(RED)}}},
     ("schema", RED, "response_format")),
    ({"response_format": {"type": "json", "value": RED}}, ("schema", RED, "response_format")),
    ({"response_format": {"type": "json_object", "schema": RED}},
     ("schema", RED, "response_format")),
    ({"response_format": {"type": "regex", "value": "a"}}, ("regex", "a", "response_format")),
    ({"grammar": {"type": "json", "value": RED}}, ("schema", RED, "grammar")),
    ({"grammar": {"type": "regex", "value": "a"}}, ("regex", "a", "grammar")),
    ({"json_schema": RED}, ("schema", RED, "json_schema")),
    ({"json_schema": json.dumps(RED)}, ("schema", RED, "json_schema")),
    ({"guided_json": RED}, ("schema", RED, "guided_json")),
    ({"guided_regex": "a"}, ("regex", "a", "guided_regex")),
    ({"guided_grammar": "start: A"}, ("grammar", "start: A", "guided_grammar")),
    ({"guided_choice": ["a", "b"]}, ("grammar", CHOICE, "guided_choice")),
    ({"structured_outputs": {"json": RED}}, ("schema", RED, "structured_outputs.json")),
    ({"structured_outputs": {"regex": "a"}}, ("regex", "a", "structured_outputs.regex")),
    ({"structured_outputs": {"choice": ["a", "b"]}},
     ("grammar", CHOICE, "structured_outputs.choice")),
    ({"structured_outputs": {"grammar": "start: A"}},
     ("grammar", "start: A", "structured_outputs.grammar")),
    ({"structured_outputs": {"json_object": True}},
     ("schema", {"type": "object"}, "structured_outputs.json_object")),
    ({"regex": "a"}, ("regex", "a", "regex")),
    ({"ebnf": 'root ::= "a"'}, ("grammar", 'root ::= "a"', "ebnf")),
    ({"format": "json"}, ("schema", {"type": "object"}, "format")),
    ({"format": RED}, ("schema", RED, "format")),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": RED}}},
     ("schema", RED, "text.format")),
    ({"output_format": {"type": "json_schema", "schema": RED}}, ("schema", RED, "output_format")),
    ({"output_config": {"format": {"type": "json_schema", "schema": RED}}},
     ("schema", RED, "output_config.format")),
    ({"extra_body": {"guided_json": RED}}, ("schema", RED, "guided_json")),
    ({"nvext": {"guided_json": RED}}, ("schema", RED, "guided_json")),
]  # fmt: skip
"""Form options of clients of other servers, with the forms that they select."""
READ_ORDERS: list[tuple[Callable[[Fields, str], CompletionRequest], dict[str, Any]]] = [
    (read_chat_request, {"messages": HI}),
    (read_completion_request, {"prompt": "a"}),
    (read_response_request, {"input": "a"}),
    (ollama.read_chat_request, {"messages": HI}),
    (ollama.read_generate_request, {"prompt": "a"}),
]


@pytest.mark.parametrize(("options", "form"), FORMS, ids=lambda value: json.dumps(value)[:50])
def test_forms_are_read_in_every_dialect(
    options: dict[str, Any], form: tuple[str, Any, str]
) -> None:
    for read, needed in READ_ORDERS:
        fields = Fields({**needed, **options})
        read_form = read(fields, "m").form
        assert read_form is not None
        text = json.loads(read_form.text) if read_form.syntax == "schema" else read_form.text
        assert (read_form.syntax, text, read_form.name) == form
        assert fields.ignored == set()


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"structural_tag": {"triggers": ["<"]}}, "structural_tag"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"response_format": {"type": "structural_tag", "structures": []}}, "response_format.type"),
        ({"grammar_triggers": [{"type": 0}]}, "grammar_triggers"),
        ({"guided_choice": [1]}, "guided_choice"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_json": RED, "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "format": "json"}, "format"),
        ({"format": "yaml"}, "format"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
    ],
)
def test_unsupported_parameters_are_refused(options: dict[str, Any], param: str) -> None:
    for read, needed in READ_ORDERS:
        with pytest.raises(ApiError, match=param.rpartition(".")[2]) as refused:
            read(Fields({**needed, **options}), "m")
        assert refused.value.param == param


def test_a_refusal_lists_the_allowed_values() -> None:
    for read, field, words in (
        (read_generate_request, {"template": "x"}, "template is not supported (leave it out)"),
        (read_completion_request, {"echo": True}, "echo is not supported (allowed: False)"),
    ):
        with pytest.raises(ApiError) as refused:
            read(Fields({"prompt": "a", **field}), "m")
        assert refused.value.message == words


def test_empty_form_fields_are_accepted() -> None:
    neutral = {
        "structured_outputs": True, "guided_choice": None, "guided_json": "", "format": "",
        "text": None, "grammar_lazy": False, "structural_tag": None,
        "response_format": {"type": "text"}, "function_call": "auto",
    }  # fmt: skip
    for read, needed in READ_ORDERS:
        assert read(Fields({**needed, **neutral}), "m").form is None


@pytest.mark.parametrize(
    ("fields", "ends_with", "param"),
    [
        ({"add_generation_prompt": False}, "user", "add_generation_prompt"),
        ({"add_generation_prompt": False}, "assistant", None),
        ({"add_generation_prompt": True}, "user", None),
        ({"add_generation_prompt": True}, "assistant", "add_generation_prompt"),
        ({"continue_final_message": False}, "user", None),
        ({"continue_final_message": False}, "assistant", "continue_final_message"),
        ({"continue_final_message": True}, "user", "messages"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "assistant", None),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "assistant",
            "add_generation_prompt",
        ),
    ],
)
def test_contradicting_continuation_options_are_refused(
    fields: dict[str, Any], ends_with: str, param: str | None
) -> None:
    history = [*HI, {"role": "assistant", "content": "So", "prefix": True}][
        : 2 if ends_with == "assistant" else 1
    ]
    request, refused = outcome(
        lambda: read_chat_request(Fields({"messages": history, **fields}), "m")
    )
    assert (refused.param if refused is not None else None) == param
    assert param is not None or request.reply_prefix == ("So" if ends_with == "assistant" else "")


@pytest.mark.parametrize(("message", "path"), WRONG_MESSAGES)
def test_a_wrong_message_is_refused_by_its_path(message: Any, path: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_chat_request(fields_of({"messages": [message]}), "m")
    assert refused.value.param == path
    assert refused.value.status == 400


@settings(max_examples=25)
@given(
    st.sampled_from([*WRONG, *WRONG_IN_CHATS, *WRONG_IN_TEXTS, "user", "metadata"]),
    JSON,
    st.lists(
        JSON | st.dictionaries(st.sampled_from(["role", "content", "name"]), JSON), max_size=3
    ),
)
def test_any_fields_are_read_or_refused(name: str, value: Any, messages: list[Any]) -> None:
    for read, needed in (
        (read_chat_request, {"messages": HI}),
        (read_chat_request, {"messages": messages}),
        (read_completion_request, {"prompt": "hi"}),
    ):
        fields = Fields({**needed, name: value})
        request, error = outcome(lambda: read(fields, "m"))  # noqa: B023 - called at once
        assert request is None or request.messages or request.prompt
        assert error is None or (error.status in (400, 404) and is_line(error.message))


@settings(max_examples=25)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_body_is_an_object_or_refused(body: bytes) -> None:
    value, error = outcome(lambda: read_json(body))
    assert (value is None) != (error is None)
    assert error is None or is_line(error.message)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff",
        b"NaN",
        b'{"seed":' + b"9" * 5000 + b"}",
        b"[]",
        b"5",
    ],
)
def test_a_body_without_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError, match=r"^the body is "):
        read_json(body)


def test_unknown_fields_are_ignored_and_collected() -> None:
    body = {
        "model": "gpt-4o",
        "messages": [{"role": "user",
                      "content": [{"type": "text", "text": "hi", "cache_control": {}}],
        "colour": "red",
                      "name": "Ann"}],
        "top_a": None, "cache_prompt": True, "provider": {"request": ["x"]},
        "\x1b[31m" + "x" * 200: 1,
        "chat_template_kwargs": {"enable_thinking": False, "preserve": True},
        "stream_options": {"what": 1},
        "tools": [{"type": "function", "function": {"name": "f", "colour": 1}, "cache_control": 1},
                  {"type": "magic"}],
        "response_format": {"type": "text", "colour": 1}, "verbosity": "low",
        "service_tier": "auto",
    }  # fmt: skip
    fields = Fields(body)
    request = read_chat_request(fields, "m")
    assert (request.messages, request.thinking) == ((PromptMessage("user", "hi"),), "off")
    assert (
        [tool["function"]["name"] for tool in request.tools.definitions] == ["f"]
        if request.tools
        else False
    )
    short_fields = {field for field in fields.ignored if "x" * 40 not in field}
    assert short_fields == {
        "model (always m)", "messages[].colour", "cache_prompt", "provider",
        "chat_template_kwargs.preserve",
        "stream_options.what", "tools[].function.colour", "tools[].cache_control",
        "tools of type magic",
        "response_format.colour",
    }  # fmt: skip
    assert all(is_line(field) for field in fields.ignored)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_odd_requests_are_read_and_damaged_ones_refused(seed: int) -> None:
    random = Random(seed)
    assert read_chat_request(Fields(odd(random)[1]), "m").messages
    assert read_response_request(Fields(odd_response(random)[1]), "m").messages
    path, body = damaged(random)
    read = read_response_request if "responses" in path else read_chat_request
    _, error = outcome(lambda: read(read_json(body), "m"))
    assert error is None or (error.status == 400 and is_line(error.message))


def test_the_number_of_ignored_fields_is_limited() -> None:
    fields = Fields({"messages": HI, **{f"x{n}": 1 for n in range(1000)}})
    read_chat_request(fields, "m")
    assert len(fields.ignored) == MAX_IGNORED


def test_special_values_mean_none_or_all() -> None:
    body = b"\xef\xbb\xbf" + json.dumps(
        {"messages": HI, "max_tokens": -1, "top_k": -1.0, "repeat_last_n": -1, "seed": 4.0,
         "stop": ["", None, "x"],
         "top_logprobs": 3, "n": 1.0, "reasoning_effort": "default", "model": ""}
    ).encode()  # fmt: skip
    request = read_chat_request(read_json(body), "m")
    assert request.sampling == {"top_k": 0, "repeat_window": MAX_TOKENS, "seed": 4}
    assert (request.max_tokens, request.stop_strings, request.n_logprobs, request.thinking) == (
        0,
        ("x",),
        None,
        None,
    )


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 4.0}, 4),
        ({"n_predict": 4}, 4),
        ({"max_tokens": 100, "max_completion_tokens": 3, "n_predict": 9}, 3),
        ({"max_tokens": 10**300}, MAX_TOKENS),
        ({"max_tokens": 1e300}, MAX_TOKENS),
        ({}, None),
    ],
)
def test_the_limit_has_several_names(fields: dict[str, Any], limit: int | None) -> None:
    assert read_chat_request(Fields({"messages": HI, **fields}), "m").max_tokens == limit


def test_neutral_values_are_accepted() -> None:
    neutral = {
        "model": "m", "n": 1, "logit_bias": None, "presence_penalty": None,
        "frequency_penalty": None, "tools": [],
        "tool_choice": "auto", "response_format": {"type": "text"}, "user": "u",
        "metadata": {"a": "b"}, "store": False,
        "stop": None, "seed": None, "stream": None, "temperature": None,
        "parallel_tool_calls": True,
    }  # fmt: skip
    request = read_chat_request(Fields({"messages": HI, **neutral}), "m")
    assert (request.sampling, request.stop_strings, request.is_streamed, request.n_logprobs) == (
        {},
        (),
        False,
        None,
    )


SPELLINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"presence_penalty": 1, "frequency_penalty": -0.5},
     {"presence_penalty": 1.0, "frequency_penalty": -0.5}),
    ({"repetition_penalty": 1.05}, {"repeat_penalty": 1.05}),
    ({"repetition_penalty": 1.05, "repeat_penalty": 1.2}, {"repeat_penalty": 1.2}),
    ({"repeat_last_n": 9}, {"repeat_window": 9}),
    ({"repeat_last_n": -1}, {"repeat_window": 2**31 - 1}),
    ({"typical_p": 0.9, "top_n_sigma": 1}, {"typical_p": 0.9, "top_n_sigma": 1.0}),
    ({"top_n_sigma": -1}, {"top_n_sigma": 0.0}),
    ({"xtc_probability": 0.5, "xtc_threshold": 0.2},
     {"xtc_probability": 0.5, "xtc_threshold": 0.2}),
    (
        {"dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": -1},
        {"dry_multiplier": 0.8, "dry_base": 2.0, "dry_allowed_length": 3, "dry_window": 0},
    ),
    ({"dry_multiplier": 0.8, "dry_penalty_last_n": 0}, {"dry_multiplier": 0.0, "dry_window": 0}),
    ({"dry_sequence_breakers": ["\n", "##"]}, {"dry_breakers": ("\n", "##")}),
    ({"dry_sequence_breakers": []}, {"dry_breakers": ()}),
    ({"ignore_eos": True}, {"ignore_eos": True}),
    ({"logit_bias": {}}, {"logit_bias": ()}),
    ({"logit_bias": {"50": -100, " a": 1.5}}, {"logit_bias": ((50, -100.0), (" a", 1.5))}),
    ({"logit_bias": [[50, False], ["x", 2], ["7", 1]]},
     {"logit_bias": ((50, -1e9), ("x", 2.0), (7, 1.0))}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "chosen"), SPELLINGS, ids=lambda options: next(iter(options)))
def test_samplers_have_the_names_of_other_servers(
    options: dict[str, Any], chosen: dict[str, Any]
) -> None:
    assert read_chat_request(Fields({"messages": HI, **options}), "m").sampling == chosen
    assert read_completion_request(Fields({"prompt": "a", **options}), "m").sampling == chosen
    assert read_response_request(Fields({"input": "a", **options}), "m").sampling == chosen


def test_a_text_with_a_bias_becomes_its_tokens() -> None:
    sampling = {"logit_bias": ((50, 1.0), ("ab", -2.0), (-1, 3.0)), "top_k": 5}
    spelled = SimpleNamespace(encode=lambda text, **options: [ord(character) for character in text])
    resolved_sampling = resolved(sampling, cast("Any", spelled))
    assert resolved_sampling == {"logit_bias": ((50, 1.0), (97, -2.0), (98, -2.0)), "top_k": 5}


def test_all_fields_are_in_the_request() -> None:
    request = read_chat_request(
        Fields(
            {
                "messages": HI,
                "stop": ["a", "b"],
                "seed": 5,
                "temperature": 0,
                "stream": True,
                "logprobs": True,
            }
        ),
        "m",
    )
    assert request.messages == (PromptMessage("user", "hi"),)
    assert (request.stop_strings, request.is_streamed, request.n_logprobs) == (("a", "b"), True, 0)
    assert request.sampling == {"seed": 5, "temperature": 0.0}
    assert read_completion_request(Fields({"prompt": [[1, 2]]}), "m").prompt == (1, 2)
