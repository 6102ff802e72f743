"""``/v1/responses`` as the official client sees it."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from app.server.api_error import ApiError
from app.server.fields import Fields
from app.server.messages import Said
from app.server.order import response_order
from tests.app.server.serving import PATIENCE_S, Serving

FIRST = {"role": "user", "content": "capital of France?"}


def client_of(server: Serving) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=PATIENCE_S, max_retries=0)


def test_a_text_is_answered_whole(server: Serving) -> None:
    reply = client_of(server).responses.create(model="m", input="capital of France?", instructions="be brief")
    assert (reply.output_text, reply.status, reply.model) == ("Paris.", "completed", "m")
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (11, 3, 14)
    chat = server.script.opened[0].chats[0]
    assert [message.content for message in chat.messages][:2] == ["be brief", "capital of France?"]


def test_a_reply_that_is_sent_back_is_not_read_again(server: Serving) -> None:
    client = client_of(server)
    first = client.responses.create(model="m", input=[FIRST])  # type: ignore[list-item]
    items: list[Any] = [FIRST, *(item.model_dump() for item in first.output), {"role": "user", "content": "sure?"}]
    second = client.responses.create(model="m", input=items)
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= 10


def test_a_stream_builds_up_the_same(server: Serving) -> None:
    server.script.opening, server.script.opened[0].chats[0].opening = "<think>", "<think>"
    server.script.replies = [["hm", "</think>", "Par", "is."]]
    with client_of(server).responses.stream(model="m", input="capital of France?") as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))  # type: ignore[union-attr]
    assert [event.type for event in events][:2] == ["response.created", "response.in_progress"]
    assert events[-1].type == "response.completed"
    told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert told == final.output_text == "Paris."
    assert [item.type for item in final.output] == ["reasoning", "message"]
    assert "".join(event.delta for event in events if event.type == "response.reasoning_text.delta") == "hm"
    starts = [event.output_index for event in events if event.type == "response.output_item.added"]
    ends = [event.output_index for event in events if event.type == "response.output_item.done"]
    assert starts == ends == [0, 1]


def test_a_limit_makes_it_incomplete(server: Serving) -> None:
    client = client_of(server)
    reply = client.responses.create(model="m", input="hi", max_output_tokens=2)
    assert (reply.output_text, reply.status) == ("Paris", "incomplete")
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(model="m", input="hi", max_output_tokens=2, stream=True))
    assert events[-1].type == "response.incomplete"


def test_an_engine_that_fails_ends_the_stream_with_an_error(server: Serving) -> None:
    server.script.fail_after_tokens = 1
    with pytest.raises(openai.InternalServerError, match="NaN"):
        client_of(server).responses.create(model="m", input="hi")
    text = server.post("/v1/responses", {"input": "hi", "stream": True}).text
    assert text.rstrip().rpartition("event: ")[2].startswith('error\ndata: {"type":"error"')
    assert "NaN" in text
    assert "[DONE]" not in text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": "hi", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": "hi", "conversation": "conv_1"}, "conversation"),
        ({"input": "hi", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "hi", "background": True}, "background"),
        ({"input": "hi", "max_output_tokens": 0}, "max_output_tokens"),
        ({"input": "hi", "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"input": "hi", "messages": []}, "messages"),
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": 3}, "input"),
        ({"input": [3]}, "input[0]"),
        ({"input": [{"type": "function_call_output"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"role": "assistant", "content": "hi"}]}, "input[0].role"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        response_order(Fields(fields), "m")
    assert refused.value.param == param


def test_input_becomes_an_order() -> None:
    order = response_order(
        Fields(
            {
                "input": [
                    {"type": "message", "role": "developer", "content": "in French"},
                    {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                    {"type": "reasoning", "id": "rs_1", "summary": []},
                    {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                     "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}]},
                    {"role": "user", "content": "c"},
                ],
                "instructions": "be brief", "reasoning": {"effort": "none"}, "temperature": 0.5, "store": False,
                "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "null"}, "strict": True}},
            }
        ),
        "m",
    )  # fmt: skip
    expected = Said("system", "be brief\n\nin French"), Said("user", "a"), Said("assistant", "b"), Said("user", "c")
    assert order.messages == expected
    assert (order.thinking, order.sampling) == ("off", (("temperature", 0.5),))
    assert order.form is not None
    assert (order.form.name, order.form.text) == ("text.format", '{"type": "null"}')
