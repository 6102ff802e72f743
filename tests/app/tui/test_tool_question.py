"""Tool calls on the screen with a real server: the question and its three answers."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.program.settings import ToolServerSetting, ToolSettings
from app.tools.toolbox import full_arguments
from app.tui.screens.question import CALM_S, QuestionScreen
from app.tui.widgets.message_view import ToolView
from engine.prompt.tools.calls import ToolCall
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Script

SERVER = Path(__file__).parents[1] / "tools" / "mcp" / "hostile_server.py"
TOOLS = ToolSettings(
    "on", 2000, (ToolServerSetting("own", (sys.executable, "-I", "-S", str(SERVER))),)
)


def call(text: str, name: str = "echo") -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {'text': text}})}</tool_call>"


async def press_calmly(chat: Driver, key: str) -> None:
    chat.script.clock.advance(CALM_S)
    await chat.pilot.press(key)


async def question(chat: Driver) -> QuestionScreen:
    await chat.until(lambda: isinstance(chat.app.screen, QuestionScreen), "the question")
    assert isinstance(chat.app.screen, QuestionScreen)
    return chat.app.screen


@pytest.mark.slow
async def test_a_tool_call_is_shown_confirmed_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = [
        ["Look. ", call("one\n\x1b[31mtwo\u202e")],
        [call("three")],
        [call("four")],
        [call("die", "do")],
        ["End."],
    ]
    async with chatting(Script(replies=replies), tools=TOOLS) as chat:
        await chat.say("what?")
        first = await question(chat)
        await chat.shows('Run echo from "own"?')
        await chat.shows("one\\n\\u001b[31mtwo\ufffd")
        await chat.pilot.press("x", "y")  # somebody types on: no answer
        assert await question(chat) is first
        await press_calmly(chat, "a")
        await chat.until(
            lambda: len(chat.chat.core.chat_session.conversation.messages) == 8, "three rounds"
        )
        asked = await question(chat)  # of another tool, the first time
        assert asked._call.name == "do"
        await chat.pilot.press("escape")
        await chat.until(
            lambda: chat.chat.core.chat_session.conversation.messages[-1].text == "End."
        )
        said = [message.text for message in chat.chat.core.chat_session.conversation.messages]
        assert said[2] == "echo: one\n␛[31mtwo\u202e"
        assert said[4::2] == ["echo: three", "echo: four", "do: The user refused this call."]
        await chat.shows("+ echo")
        view = next(iter(chat.transcript.query(ToolView)))
        assert view.folded.endswith("(and 1 more line)")
        await chat.say("/tools")
        await chat.note("own: on, echo, do")
        assert not chat.chat.core.chat_session.is_busy
        monkeypatch.setattr("app.tui.chat.tool_calls.MOST_ROUNDS", 2)
        chat.script.replies = [[call("again")]]
        await chat.say("for ever")  # echo was agreed to
        await chat.note("rounds of tool calls for one message")
        assert not chat.chat.core.chat_session.is_busy
        assert chat.chat.core.chat_session.conversation.n_rounds == 2
        model = chat.chat.core.chat_session.model
        assert model is not None
        chat.chat.tools.say_where_results_go(replace(model, server="host:8000"))
        await chat.note("Results of tools are sent to host:8000, which writes the replies")


@pytest.mark.smoke
@pytest.mark.slow
async def test_a_tool_that_always_runs_is_not_asked_about() -> None:
    tools = replace(TOOLS, servers=(replace(TOOLS.servers[0], always=("echo",)),))
    async with chatting(Script(replies=[[call("one")], ["End."]]), tools=tools) as chat:
        await chat.say("what?")
        await chat.until(
            lambda: chat.chat.core.chat_session.conversation.messages[-1].text == "End."
        )
        assert [message.text for message in chat.chat.core.chat_session.conversation.messages][
            2
        ] == "echo: one"


def test_all_arguments_are_shown_as_plain_text() -> None:
    text = full_arguments(
        ToolCall("echo", json.dumps({"a\nb": "\x1b[2J\u202e", "n": [1, {"x": "\x9b"}]}))
    )
    assert text == '"a\\nb": "\\u001b[2J\ufffd"\n"n": [1, {"x": "\ufffd"}]'
    assert full_arguments(ToolCall("echo")) == "(no arguments)"
