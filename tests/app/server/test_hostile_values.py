"""Tests of hostile values in every field of every dialect: answers or refusals, no faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from app.server.completion_request import (
    CompletionRequest,
)
from app.server.dialects import llama_server, ollama
from app.server.dialects.anthropic_request import read_message_request
from app.server.dialects.openai_request import read_chat_request, read_completion_request
from app.server.dialects.responses_request import read_response_request
from app.server.fields import Fields, read_json
from tests.app.server.hostile_values import (
    BODIES,
    FORMS,
    VALUES,
    exchanged,
    fault_of,
    forms_of,
    paths_of,
    sent,
)
from tests.app.server.test_completion_request import is_line, outcome
from tests.app.server.tiny_server import tiny_server

READERS: dict[str, Callable[[Fields, str], CompletionRequest]] = {
    "/v1/chat/completions": read_chat_request,
    "/infill": llama_server.read_infill_request,
    "/v1/messages": read_message_request,
    "/v1/responses": read_response_request,
    "/v1/completions": read_completion_request,
    "/api/chat": ollama.read_chat_request,
    "/api/generate": ollama.read_generate_request,
}
N_SENT_VALUES = 3
"""Number of values sent for each path in a body; all paths together get all values."""
HI = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    marks = {"pre": 5, "suf": 6, "mid": 7}
    with tiny_server(tmp_path_factory.mktemp("tiny"), marks) as client:
        yield client


def changes(path: str) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Yield each body of a path with the keys of each of its values."""
    body = BODIES[path]
    for value_path in paths_of(body):
        yield body, list(value_path)
    for form in forms_of(path):
        for value_path in paths_of(form):
            if value_path[0] in FORMS:
                yield form, list(value_path)


@pytest.mark.slow
@pytest.mark.parametrize("path", BODIES)
def test_every_value_in_every_field_is_read_or_refused(path: str) -> None:
    for body, value_path in changes(path):
        for value in VALUES:
            content = sent(exchanged(body, tuple(value_path), value))
            _, error = outcome(lambda: READERS[path](read_json(content), "m"))  # noqa: B023
            is_clean = error is None or (error.status == 400 and is_line(error.message))
            assert is_clean, (value_path, value)


@pytest.mark.slow
@pytest.mark.parametrize("path", BODIES)
def test_a_real_server_survives_hostile_values(tiny: httpx.Client, path: str) -> None:
    assert tiny.post(path, content=sent(BODIES[path])).status_code == 200
    n_sent = 0
    for body, value_path in changes(path):
        for _ in range(N_SENT_VALUES):
            value = VALUES[n_sent % len(VALUES)]
            n_sent += 1
            answer = tiny.post(path, content=sent(exchanged(body, tuple(value_path), value)))
            assert not fault_of(path, answer.status_code, answer.text), (
                value_path,
                value,
                answer.text[:300],
            )
    assert tiny.post(path, content=sent(BODIES[path])).status_code == 200


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"dry_sequence_breakers": ["\ud800"], "dry_multiplier": 1}, "dry_sequence_breakers"),
    ({"stop": ["a", "\ud800"]}, "stop"),
    ({"logit_bias": {"\ud800": 1}}, "logit_bias"),
    ({"model": "\ud800"}, "model"),
    ({"grammar": 'root ::= "\ud800"'}, "grammar"),
    ({"grammar": "start: <|im_end|>"}, "grammar"),
    ({"guided_regex": "\ud800"}, "guided_regex"),
    ({"guided_choice": ["\ud800"]}, "guided_choice"),
    ({"guided_json": {"const": "\ud800"}}, "guided_json"),
    ({"guided_json": {"const": 2**70}}, "guided_json"),
    ({"tools": [{"type": "function", "function": {"name": "\ud800"}}]}, "tools[0].function.name"),
]


@pytest.mark.slow
def test_senseless_values_are_client_errors(tiny: httpx.Client) -> None:
    for fields, name in REFUSED:
        for is_streamed in (False, True):
            answer = tiny.post(
                "/v1/chat/completions", content=sent({**HI, **fields, "stream": is_streamed})
            )
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name), answer.text


@pytest.mark.slow
def test_rules_that_cannot_be_enforced_are_logged_once(
    tiny: httpx.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = {
        "name": "odd",
        "input_schema": {"properties": {"a": {"type": "array", "uniqueItems": True}}},
    }
    for _ in range(3):
        answer = tiny.post(
            "/v1/chat/completions", content=sent({**HI, "tools": [odd], "tool_choice": "odd"})
        )
        assert answer.status_code == 200
    assert capsys.readouterr().err.count("so it is ignored: tool odd: uniqueItems") == 1


@pytest.mark.smoke
@pytest.mark.slow
def test_lone_surrogates_in_texts_are_replaced(tiny: httpx.Client) -> None:
    call = {"id": "\ud800", "function": {"name": "\ud800", "arguments": '{"a": "\ud800"}'}}
    tool = {
        "name": "f",
        "description": "\ud800",
        "input_schema": {"properties": {"\ud800": {"enum": ["\ud800"]}}},
    }
    messages = [
        {"role": "user", "content": "\ud800"},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "\ud800"}],
            "tool_calls": [call],
        },
        {"role": "tool", "content": {"\ud800": "\ud800"}},
        {"role": "user", "content": [{"type": "text", "text": "\ud83d"}]},
    ]
    body = {"messages": messages, "tools": [tool], "max_tokens": 2, "tool_choice": "required"}
    assert tiny.post("/v1/chat/completions", content=sent(body)).status_code == 200
    assert (
        tiny.post(
            "/v1/completions", content=sent({"prompt": "\ud800", "max_tokens": 2})
        ).status_code
        == 200
    )
    generate_body = {
        "prompt": "\ud800",
        "system": "\ud800",
        "stream": False,
        "options": {"num_predict": 2},
    }
    assert tiny.post("/api/generate", content=sent(generate_body)).status_code == 200
