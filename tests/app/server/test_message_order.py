"""Tests of the order of messages: no text is lost, and templates accept the result."""

from __future__ import annotations

from typing import Any

import pytest

from app.conversations.conversation import PromptMessage
from app.server.fields import Fields
from app.server.message_fields import read_messages
from app.server.message_order import arrange_messages, fit_template
from tests.app.server.serving import Serving

ASK = {"role": "user", "content": "ask"}


def make_message(text: str, role: str = "user") -> PromptMessage:
    return PromptMessage(role, text)


def message(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def calling(*ids: str, content: str | None = None) -> dict[str, Any]:
    calls = [
        {"id": message, "type": "function", "function": {"name": f"f{message}", "arguments": ""}}
        for message in ids
    ]
    return message("assistant", content, tool_calls=calls)


def result(call_id: str | None, content: Any = "found") -> dict[str, Any]:
    return message("tool", content, **({"tool_call_id": call_id} if call_id else {}))


def words(items: list[Any]) -> str:
    """Describe a conversation with the start of the reply, as in ``u:ask a:hm+f1 t:f1=found``."""
    arranged, reply_prefix = arrange_messages(
        read_messages(Fields({"messages": items})), "messages"
    )
    descriptions = []
    for message in arranged:
        result = f"{message.results[0].name}=" if message.role == "tool" else ""
        calls = "".join(f"+{call.name}" for call in message.calls)
        descriptions.append(f"{message.role[0]}:{result}{message.text}{calls}")
    return " ".join([*descriptions, *([f"> {reply_prefix}"] if reply_prefix else [])])


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([message("system", "s"), message("developer", "d"), ASK], "s:s\n\nd u:ask"),
        ([ASK, message("system", "s"), ASK], "u:ask s:s u:ask"),
        ([ASK, ASK], "u:ask u:ask"),
        ([message("assistant", "hello"), ASK], "a:hello u:ask"),
        ([ASK, message("assistant", "I am")], "u:ask > I am"),
        ([ASK, message("assistant", "I am"), message("assistant", "so")], "u:ask > I am\n\nso"),
        ([ASK, message("assistant", "")], "u:ask"),
        ([ASK, message("assistant", None), ASK], "u:ask a: u:ask"),
        ([message("assistant", "Once")], "u: > Once"),
        ([message("system", "s")], "s:s"),
        ([message("system", None)], "u:"),
        ([message("system", ["a", {"type": "text", "text": "b"}, {"text": "c"}]), ASK],
         "s:abc u:ask"),
        ([ASK,
          message("assistant", [{"type": "thinking", "x": "hm"},
                                {"type": "refusal", "refusal": "no"}]), ASK],
         "u:ask a:no u:ask"),
        ([ASK, message("assistant", None, refusal="no"), ASK], "u:ask a:no u:ask"),
        ([ASK, calling("1", "2"), result("2", "b"), result("1", None)],
         "u:ask a:+f1+f2 t:f2=b t:f1="),
        ([ASK, calling("1"), message("user", "and"), result("1"), ASK],
         "u:ask a:+f1 t:f1=found u:and u:ask"),
        ([ASK, calling("1"), result(None), calling("1"), result("1")],
         "u:ask a:+f1 t:f1=found a:+f1 t:f1=found"),
        ([ASK, calling("1", "1"), result("1", "a"), result("1", "b")],
         "u:ask a:+f1+f1 t:f1=a t:f1=b"),
        ([ASK, message("assistant", "let me"), calling("1"), result("1")],
         "u:ask a:let me+f1 t:f1=found"),
        ([ASK, result("9"), ASK], "u:ask u:found u:ask"),
        ([ASK, calling("1", content="hm"), message("user", "stop")], "u:ask a:hm u:stop"),
        ([ASK, calling("1"), message("user", "stop")], "u:ask u:stop"),
        ([ASK, calling("1", "2"), result("2")], "u:ask a:+f2 t:f2=found"),
        ([calling("1"), result("1"), ASK], "a:+f1 t:f1=found u:ask"),
        ([ASK, message("assistant", None, function_call={"name": "g", "arguments": "{}"}),
          message("function", "old", name="g")], "u:ask a:+g t:g=old"),
    ],
)  # fmt: skip
def test_messages_in_any_order_are_arranged(items: list[Any], expected: str) -> None:
    assert words(items) == expected


ORDERS = [
    ([make_message("a"), make_message("s", "system"), make_message("b")],
     [make_message("a\n\ns\n\nb")]),
    ([make_message("s", "system"), make_message("hello", "assistant"), make_message("a")],
     [make_message("s", "system"), make_message(""), make_message("hello", "assistant"),
      make_message("a")]),
    ([make_message("s", "system")], [make_message("s")]),
    ([make_message("s", "system"), make_message("a"), make_message("x", "assistant"),
      make_message("t", "system")],
     [make_message("s", "system"), make_message("a"), make_message("x", "assistant"),
      make_message("t")]),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "strict"), ORDERS)
def test_a_strict_template_gets_alternating_turns(
    messages: list[PromptMessage], strict: list[PromptMessage]
) -> None:
    assert fit_template(messages, lambda roles: False) == tuple(strict)
    assert fit_template(messages, lambda roles: True) == tuple(messages)


@pytest.mark.parametrize("is_strict", [False, True])
def test_every_order_is_answered_and_cached(server: Serving, is_strict: bool) -> None:
    chat = server.script.opened[0].chats[0]
    chat.takes_any_order = not is_strict
    messages = [
        message("system", "s"),
        message("assistant", "hello"),
        ASK,
        message("system", "now"),
        ASK,
    ]
    first = server.post("/v1/chat/completions", {"messages": messages}).json()
    roles = [message.role for message in chat.messages]
    assert roles == (
        ["system", "user", "assistant", "user", "assistant"]
        if is_strict
        else ["system", "assistant", "user", "system", "user", "assistant"]
    )
    messages += [message("assistant", first["choices"][0]["message"]["content"]), ASK]
    usage = server.post("/v1/chat/completions", {"messages": messages}).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > first["usage"]["prompt_tokens"]
