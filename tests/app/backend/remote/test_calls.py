"""Tests of tools with a remote model: definitions, calls in every format, results."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from app.backend.engine_link import EngineLink
from app.backend.options import ChatOptions
from app.backend.protocol import Opening
from app.backend.remote.backend import RemoteBackend
from app.backend.remote.tool_calls import messages_of
from app.conversations.conversation import ChatMessage, Conversation, Role
from app.program.remote_model import RemoteModel
from app.program.settings import ToolServerSetting, ToolSettings
from app.session import events
from app.session.request import Request
from app.tools.mcp.server import ServedTool
from app.tools.toolbox import REFUSED, ToolBox
from engine.prompt.tools.calls import CallResult, ToolCall
from tests.app.backend.remote.raw_api import RawApi, answering, event, http, stream
from tests.app.fake_engine import Script

TOOLS = tuple(ServedTool(name, "says it", {"type": "object"}) for name in ("echo", "do"))
SETTINGS = ToolSettings("on", 20, (ToolServerSetting("own", ("none",)),))
END = event(finish="tool_calls") + b"data: [DONE]\n\n"


def repeating_server(*_: Any) -> Any:
    """Return a tool server that repeats its arguments."""

    def say(name: str, values: Any) -> Any:
        return SimpleNamespace(text=f"{name} {values['text']}", is_error=False, is_cut=False)

    return SimpleNamespace(
        start=lambda: TOOLS,
        close=lambda: None,
        call=say,
        is_running=True,
        left_out=(),
        has_new_tools=False,
    )


class Desk:
    """Conversation with a remote model and a tool server."""

    def __init__(self, api: RawApi, has_tools: bool) -> None:
        tools = ToolBox(SETTINGS, repeating_server) if has_tools else None
        options = ChatOptions(
            open_model=Script().open_model, sampling=lambda chosen, model, mode: None, tools=tools
        )
        self._link = EngineLink(time.monotonic)
        self._backend = RemoteBackend(self._link, options)
        self._backend.open(Opening(RemoteModel(api.url), Request()))
        self._conversation = Conversation()

    def ask(self, text: str) -> events.GenerationFinished:
        """Send a message and wait until the reply has ended."""
        self._conversation.add_user(text)
        return self._reply()

    def call(self, *allowed: str) -> tuple[CallResult, ...]:
        """Run the calls of the last reply and return their results."""
        calls = self._conversation.messages[-1].calls
        refused = {call.call_id: REFUSED for call in calls if call.call_id not in allowed}
        self._backend.call_tools(calls, refused)
        answered = self._link.outbox.drain()[-1]
        assert isinstance(answered, events.ToolsAnswered)
        self._conversation.add_results(answered.results)
        self._reply()
        return answered.results

    def ask_without_tools(self, text: str) -> events.GenerationFinished:
        """Send a message whose reply may call no tools, and wait until the reply has ended."""
        self._conversation.add_user(text)
        return self._reply(may_call=False)

    def try_without_tools(self) -> events.GenerationFinished:
        """Answer the results of tools again, with no call in the reply."""
        self._conversation.drop_reply()
        return self._reply(may_call=False)

    def _reply(self, may_call: bool = True) -> events.GenerationFinished:
        self._backend.reply(Request(self._conversation.prompt_messages(), may_call=may_call))
        *received, finished = self._link.outbox.drain()
        assert isinstance(finished, events.GenerationFinished), finished
        text = "".join(
            text_event.text
            for text_event in received
            if isinstance(text_event, events.TextGenerated)
        )
        reply = self._conversation.add_reply(text, finished.ending, finished.figures)
        reply.raw = finished.raw
        reply.calls = finished.calls
        reply.calls_at = finished.calls_at
        reply.server_fields = finished.server_fields
        return finished


@contextmanager
def desk(*answers: bytes, has_tools: bool = True) -> Iterator[tuple[Desk, RawApi]]:
    with answering(*answers) as api:
        yield Desk(api, has_tools), api


def call_part(name: str = "", arguments: Any = None, **fields: Any) -> dict[str, Any]:
    function = {
        **({"name": name} if name else {}),
        **({"arguments": arguments} if arguments is not None else {}),
    }
    return {**fields, "function": function}


A = '{"text": "a"}'
B = '{"text": "b"}'
SHAPES = {
    "whole, in one piece": [
        [call_part("echo", A, id="1", index=0), call_part("do", B, id="2", index=1)]
    ],
    "in parts": [
        [call_part("echo", "", id="1", index=0)], [call_part("", '{"text"', index=0)],
        [call_part("", ': "a"}', index=0)],
        [call_part("do", "", id="2", index=1)], [call_part("", B, index=1)],
    ],
    "no index": [
        [call_part("echo", '{"text"', id="1")], [call_part("", ': "a"}')],
        [call_part("do", B, id="2")],
    ],
    "one index for all": [
        [call_part("echo", A, id="1", index=0)], [call_part("do", B, id="2", index=0)]
    ],
    "no id": [[call_part("echo", A, index=0)], [call_part("do", B, index=1)]],
    "one id for all": [
        [call_part("echo", A, id="1", index=0), call_part("do", B, id="1", index=1)]
    ],
    "id in every part": [[call_part("echo", '{"text"', id="1")], [call_part("", ': "a"}', id="1")],
                         [call_part("do", B, id="2")]],
    "name in every part": [
        [call_part("echo", '{"text"', id="1", index=0)],
        [call_part("echo", ': "a"}', id="1", index=0)],
        [call_part("do", B, id="2", index=1)],
    ],
    "arguments as an object": [[call_part("echo", {"text": "a"}), call_part("do", {"text": "b"})]],
    "no function": [[{"name": "echo", "arguments": A}, {"name": "do", "input": {"text": "b"}}]],
}  # fmt: skip


def test_the_last_try_has_no_calls() -> None:
    calls = http(event(tool_calls=[call_part("echo", A, id="1")]) + END)
    with desk(calls, stream("Well."), calls, calls) as (chat, api):
        assert chat.ask("what?").calls
        chat.call("1")
        last = chat.try_without_tools()
        assert (last.calls, last.could_call) == ((), False)
        assert (api.bodies[-1]["tool_choice"], len(api.bodies[-1]["tools"])) == ("none", 2)
        last = chat.ask_without_tools("and now?")
        assert last.calls == ()
        assert "tools" not in api.bodies[-1], "no result needs their descriptions"


@pytest.mark.parametrize("name", SHAPES)
def test_calls_are_read_in_every_shape(name: str) -> None:
    body = event(content="Look.") + b"".join(event(tool_calls=call) for call in SHAPES[name]) + END
    with desk(http(body)) as (user, _):
        finished = user.ask("what?")
        assert [(call.name, call.values) for call in finished.calls] == [
            ("echo", {"text": "a"}),
            ("do", {"text": "b"}),
        ]
        assert len({call.call_id for call in finished.calls} - {""}) == 2
        assert finished.raw[: finished.calls_at].strip() == "Look."


WRITTEN = '<tool_call>{"name": "echo", "arguments": ' + A + "}</tool_call>"
UNUSUAL_CALLS = {
    "old": event(function_call={"name": "echo", "arguments": A}),
    "text": event(content=WRITTEN[:20]) + event(content=WRITTEN[20:]),
    "text without tags": event(content='{"name": "ec')
    + event(content='ho", "arguments": ' + A + "}"),
    "message": json.dumps(
        {"choices": [{"message": {"tool_calls": [call_part("echo", A)]}}]}
    ).encode()
    + b"\n",
}


@pytest.mark.parametrize("name", UNUSUAL_CALLS)
def test_a_call_is_read_in_unusual_fields(name: str) -> None:
    with desk(http(UNUSUAL_CALLS[name] + END)) as (user, _):
        assert [(call.name, call.arguments) for call in user.ask("what?").calls] == [("echo", A)]


def test_a_call_runs_and_its_result_is_sent() -> None:
    call = (
        event(content="Look.")
        + event(tool_calls=[call_part("echo", '{"text": "' + "a" * 90 + '"}', id="c1")])
        + END
    )
    with desk(http(call), stream("Done."), stream("Well.")) as (user, api):
        user.ask("what?")
        (result,) = user.call("c1")
        assert result.text.startswith("echo aaa")
        assert result.text.endswith("[cut: 60 of 95 characters]")
        user.ask("and?")
    first_body, with_result, last_body = api.bodies
    assert [entry["function"]["name"] for entry in first_body["tools"]] == ["echo", "do"]
    assert [entry["role"] for entry in with_result["messages"]] == ["user", "assistant", "tool"]
    assert with_result["messages"][1]["content"] == "Look."
    assert (
        with_result["messages"][1]["tool_calls"][0]["id"]
        == with_result["messages"][2]["tool_call_id"]
        == "c1"
    )
    assert [entry["role"] for entry in last_body["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


UNREADABLE = {
    "no tools": (call_part("echo", A), '"name": "echo"'),
    "broken": (call_part("echo", '{"text": "a'), 'echo {"text": "a'),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_call_that_cannot_run_is_text(name: str) -> None:
    call, words = UNREADABLE[name]
    with desk(http(event(tool_calls=[call]) + END), has_tools=name == "broken") as (user, api):
        ended = user.ask("what?")
        assert not ended.calls
        assert words in ended.raw
        assert ("tools" in api.bodies[0]) == (name == "broken")


def test_a_server_without_tools_gets_advice() -> None:
    refusal = http(b'{"error": "tool choice is not enabled"}', status="400 Bad")
    with (
        answering(refusal) as api,
        pytest.raises(events.Refusal, match="/tools off asks without them"),
    ):
        Desk(api, has_tools=True).ask("hi")


def test_results_without_their_call_are_text() -> None:
    results = (CallResult("echo", "a", "1"),)
    calls = (ToolCall("echo", A, "1"),)
    question = ChatMessage(Role.USER, "q")
    call_message = ChatMessage(Role.ASSISTANT, "", raw="call", calls=calls)
    answer_messages = (
        ChatMessage(Role.USER, "echo: a", results=results),
        ChatMessage(Role.ASSISTANT, "Done."),
    )
    next_question = ChatMessage(Role.USER, "and?")
    without_call = messages_of(
        Conversation(
            None, [question, call_message, *answer_messages, next_question], n_dropped=2
        ).prompt_messages()
    )
    assert [entry["role"] for entry in without_call] == ["user", "assistant", "user"]
    unanswered = messages_of(
        Conversation("be brief", [question, call_message, next_question]).prompt_messages()
    )
    assert [entry["content"] for entry in unanswered] == ["be brief", "q", "call", "and?"]
