"""Tests of ``/v1/messages`` and of counting tokens with Anthropic's own client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from app.server.api_error import ApiError
from app.server.dialects.anthropic_request import read_message_request
from app.server.fields import Fields
from tests.app.fake_engine import Gate, Script
from tests.app.server.serving import Serving, serving, until

if TYPE_CHECKING:
    import anthropic

KEY = "a-key-of-sixteen-characters"
ASK: dict[str, Any] = {"role": "user", "content": "capital of France?"}
STAMP = "x-anthropic-billing-header: cc_version=2.1.{}; cc_entrypoint=cli;"
TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}},
        "required": ["city"],
    },
    "cache_control": {"type": "ephemeral"},
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


def client_of(server: Serving, api_key: str = "none") -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(base_url=server.url, api_key=api_key, max_retries=0)


def create(server: Serving, **fields: Any) -> Any:
    body = {"model": "m", "max_tokens": 50, "messages": [ASK], **fields}
    return client_of(server).messages.create(**body)


def read(**fields: Any) -> Any:
    return read_message_request(Fields({"max_tokens": 50, "messages": [ASK], **fields}), "m")


def chats_of(server: Serving) -> list[Any]:
    return server.script.opened[0].chats


def test_a_message_gets_a_whole_reply(server: Serving) -> None:
    reply = create(server, system="be brief")
    assert [block.model_dump(include={"type", "text"}) for block in reply.content] == [
        {"type": "text", "text": "Paris."}
    ]
    assert (reply.type, reply.role, reply.model) == ("message", "assistant", "m")
    assert (reply.stop_reason, reply.stop_sequence) == ("end_turn", None)
    usage = reply.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (11, 0, 3)
    messages = chats_of(server)[0].messages
    assert [message.content for message in messages][:2] == ["be brief", "capital of France?"]


def test_cached_tokens_do_not_count_as_input(server: Serving) -> None:
    first = create(server)
    again = [ASK, {"role": "assistant", "content": first.content}, {**ASK, "content": "sure?"}]
    usage = create(server, messages=again).usage
    assert usage.cache_read_input_tokens >= 10
    assert usage.input_tokens < 10


def test_a_stream_gives_the_same_message(server: Serving) -> None:
    server.script.opening = "<think>"
    chats_of(server)[0].opening = "<think>"
    server.script.replies = [["hm", "</think>", "Par", "is."]]
    body: Any = {"model": "m", "max_tokens": 50, "messages": [ASK]}
    with client_of(server).messages.stream(**body) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_message()
    assert events[0] == "message_start"
    assert events[-1] == "message_stop"
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert final.content[0].thinking == "hm"  # type: ignore[union-attr]
    assert final.content[1].text == "Paris."  # type: ignore[union-attr]
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 4)
    assert final.usage.input_tokens == 7


def test_every_event_has_its_name(server: Serving) -> None:
    body = {"max_tokens": 5, "messages": [ASK], "stream": True}
    blocks = server.post("/v1/messages?beta=true", body).text.strip().split("\n\n")
    names = [block.partition("\n")[0].removeprefix("event: ") for block in blocks]
    assert all(
        f'data: {{"type":"{name}"' in block for name, block in zip(names, blocks, strict=True)
    )
    assert names[0:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_calls_and_results_go_there_and_back(server: Serving) -> None:
    server.script.replies = [["Let", " me.", CALL, CALL], ["Rain", "."]]
    first = create(server, tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}])
    assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
    assert (first.content[1].input, first.stop_reason) == ({"city": "Paris"}, "tool_use")
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": content}
        for block, content in zip(
            first.content[1:], ("Rain", [{"type": "text", "text": "Rain"}]), strict=True
        )
    ]
    answer = {"role": "user", "content": [*results, {"type": "text", "text": "so?"}]}
    turns = [ASK, {"role": "assistant", "content": first.content}, answer]
    second = create(server, messages=turns, tools=[TOOL])
    assert second.content[0].text == "Rain."
    roles = [message.role for message in chats_of(server)[0].messages]
    assert roles == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert second.usage.cache_read_input_tokens >= first.usage.output_tokens


def test_a_streamed_call_joins_to_its_input(server: Serving) -> None:
    server.script.replies = [["Let", " me.", CALL]]
    body: Any = {"model": "m", "max_tokens": 50, "messages": [ASK], "tools": [TOOL]}
    with client_of(server).messages.stream(**body) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["text", "tool_use"]
    assert final.content[1].input == {"city": "Paris"}  # type: ignore[union-attr]
    assert final.stop_reason == "tool_use"


def test_a_limit_is_the_reason_of_a_cut(server: Serving) -> None:
    assert create(server, max_tokens=2).stop_reason == "max_tokens"


def test_a_count_equals_the_usage(server: Serving) -> None:
    fields: dict[str, Any] = {"system": "be brief", "tools": [TOOL]}
    count = client_of(server).messages.count_tokens(model="m", messages=[ASK], **fields)  # type: ignore[list-item]
    assert count.input_tokens == create(server, **fields).usage.input_tokens


def test_a_count_does_not_wait_for_a_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    with serving(monkeypatch, Script(token_gate=gate)) as server, ThreadPoolExecutor() as pool:
        reply = pool.submit(server.post, "/v1/messages", {"messages": [ASK]})
        until(gate.waiting.is_set)
        count = pool.submit(server.post, "/v1/messages/count_tokens", {"messages": [ASK]})
        until(lambda: server.n_background_tasks == 1)
        gate.allow(1)
        assert count.result().json() == {"input_tokens": 7}
        assert not reply.done()
        gate.open()


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    with serving(monkeypatch, api_key=KEY) as server:
        yield server


def test_either_header_may_have_the_key(locked: Serving) -> None:
    body: Any = {"model": "m", "max_tokens": 5, "messages": [ASK]}
    assert client_of(locked, KEY).messages.create(**body).content
    headers = {"Authorization": f"Bearer {KEY}"}
    assert locked.post("/v1/messages", body, headers=headers).status_code == 200
    with pytest.raises(sys.modules["anthropic"].AuthenticationError):
        client_of(locked, "wrong").messages.create(**body)


@pytest.mark.parametrize(
    ("path", "body", "status", "error_type"),
    [
        ("/v1/messages", {"max_tokens": 5}, 400, "invalid_request_error"),
        ("/v1/messages", b"{", 400, "invalid_request_error"),
        ("/v1/messages/nowhere", {}, 404, "not_found_error"),
        ("/messages/count_tokens/", {"messages": []}, 400, "invalid_request_error"),
        ("/v1/messages", b" " * (25 << 20), 413, "request_too_large"),
    ],
)
def test_errors_have_the_form_of_the_api(
    shared: Serving, path: str, body: Any, status: int, error_type: str
) -> None:
    answer = shared.post(path, body)
    assert answer.status_code == status
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == error_type
    assert set(answer.json()["error"]) == {"type", "message"}


def test_a_full_server_is_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, Script(open_gate=Gate()), waits=False) as server:
        answer = server.post("/v1/messages", {"messages": [ASK], "max_tokens": 5})
        assert answer.status_code == 529
        assert answer.json()["error"]["type"] == "overloaded_error"
        assert "retry-after" in answer.headers


def test_programs_know_a_prompt_that_is_too_long(shared: Serving) -> None:
    turns = [{"role": "user", "content": "word " * 2000}]
    for is_streamed in (False, True):
        body = {"messages": turns, "max_tokens": 5, "stream": is_streamed}
        answer = shared.post("/v1/messages", body)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("prompt is too long: ")


def test_an_engine_failure_ends_the_stream_with_an_error(server: Serving) -> None:
    server.script.fail_after_tokens = 1
    with pytest.raises(sys.modules["anthropic"].InternalServerError, match="NaN"):
        create(server)
    text = server.post("/v1/messages", {"messages": [ASK], "max_tokens": 5, "stream": True}).text
    assert text.rstrip().rpartition("event: ")[2].startswith('error\ndata: {"type":"error"')


@pytest.mark.parametrize(
    "system",
    [
        STAMP.format("7f9") + "\nbe brief",
        [{"type": "text", "text": STAMP.format("08a")}, {"type": "text", "text": "be brief"}],
    ],
)
def test_a_stamp_before_the_system_text_is_left_out(system: Any) -> None:
    assert read(system=system).messages[0].text == "be brief"


def test_words_like_the_stamp_stay_in_other_places() -> None:
    system = [{"type": "text", "text": "be brief"}, {"type": "text", "text": STAMP}]
    assert STAMP in read(system=system).messages[0].text


def test_fields_of_agents_are_read_and_others_ignored() -> None:
    ephemeral = {"type": "ephemeral"}
    fields = Fields(
        {
            "model": "claude", "max_tokens": 32000, "stream": True, "temperature": 1,
            "metadata": {"user_id": "u"}, "betas": ["x"], "cache_control": ephemeral,
            "thinking": {"type": "enabled", "budget_tokens": 4000}, "top_k": 5,
            "context_management": {"edits": []}, "stop_sequences": ["END"],
            "tools": [TOOL, {"type": "bash_20250124", "name": "bash"}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "system": [{"type": "text", "text": "be brief", "cache_control": ephemeral}],
            "messages": [
                {"role": "user", "content": [
                    {"type": "text", "text": "date"},
                    {"type": "text", "text": "ask", "cache_control": ephemeral},
                    {"type": "document", "title": "T",
                     "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
                ]},
                {"role": "system", "content": "kinds: none"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "let me"},
                    {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "P"}},
                ]},
                {"role": "user", "content": [
                    {"type": "text", "text": "and?"},
                    {"type": "tool_result", "tool_use_id": "t1", "content": "no city",
                     "is_error": True, "cache_control": ephemeral},
                ]},
            ],
        }
    )  # fmt: skip
    request = read_message_request(fields, "m")
    assert [(message.role, message.text) for message in request.messages] == [
        ("system", "be brief"),
        ("user", "date\n\nask\n\nT\n\nwords"),
        ("system", "kinds: none"),
        ("assistant", "let me"),
        ("tool", "Error: no city"),
        ("user", "and?"),
    ]
    assert request.messages[3].calls[0].arguments == '{"city": "P"}'
    assert request.tools is not None
    assert request.tools.single_call
    assert (request.thinking, request.max_tokens, request.stop_strings) == ("4000", 32000, ("END",))
    assert request.sampling == {"temperature": 1.0, "top_k": 5}
    assert fields.ignored == {
        "context_management",
        "tools of type bash_20250124",
        "model (always m)",
    }


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, None),
        ({"thinking": {"type": "disabled"}}, "off"),
        ({"thinking": {"type": "enabled", "budget_tokens": 10**9}}, str(1 << 20)),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, "high"),
        ({"thinking": {"type": "adaptive"}}, None),
    ],
)
def test_thinking_is_read(fields: dict[str, Any], thinking: str | None) -> None:
    assert read(**fields).thinking == thinking


def block(block_type: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": block_type, **fields}]}]}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [3]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        (block("image"), "messages[0].content[0].image_url"),
        (block("text", text=3), "messages[0].content[0].text"),
        (block("document"), "messages[0].content[0].source"),
        (block("document", source={"type": "base64"}), "messages[0].content[0].source.type"),
        (block("tool_use"), "messages[0].content[0].type"),
        ({"system": 3}, "system"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"thinking": {"type": "often"}}, "thinking.type"),
        ({"stop_sequences": [3]}, "stop_sequences"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        (
            {"tools": [{"type": "bash_1", "name": "b"}], "tool_choice": {"type": "any"}},
            "tool_choice",
        ),
        ({"tools": [{"name": "a", "input_schema": "{"}]}, "tools[0].input_schema"),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(**fields)
    assert refused.value.param == param


def test_a_head_request_gets_an_answer(shared: Serving) -> None:
    assert shared.client.head(shared.url).status_code == 200
