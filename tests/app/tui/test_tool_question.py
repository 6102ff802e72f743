"""Tool calls on the screen with a real server: the question and its three answers."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.program.settings import ToolServerSetting, ToolSettings
from app.tools.toolbox import full_arguments
from app.tui.widgets.call_question import CALM_S, CallQuestion
from app.tui.widgets.message_view import ReplyView, ToolView
from engine.prompt.tools.calls import ToolCall
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script

SERVER = Path(__file__).parents[1] / "tools" / "mcp" / "hostile_server.py"
TOOLS = ToolSettings(
    "on", 2000, (ToolServerSetting("own", (sys.executable, "-I", "-S", str(SERVER))),)
)


def call(text: str, name: str = "echo") -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {'text': text}})}</tool_call>"


async def press_calmly(chat: Driver, key: str) -> None:
    chat.script.clock.advance(CALM_S)
    await chat.pilot.press(key)


async def question(chat: Driver) -> CallQuestion:
    def questions() -> list[CallQuestion]:
        return [question for question in chat.transcript.query(CallQuestion) if question.call]

    await chat.until(questions, "the question")
    return questions()[-1]


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
        await chat.shows("␛[31mtwo\ufffd")
        await chat.pilot.press("x", "y")  # somebody types on: no answer
        assert await question(chat) is first
        await chat.until(lambda: chat.prompt.text == "xy", "typed letters are in the prompt")
        await chat.shows("refuses the call")
        await chat.pilot.press("ctrl+up")
        await chat.until(lambda: chat.chat.focused is first, "the way back to the question")
        await press_calmly(chat, "a")
        await chat.until(
            lambda: len(chat.chat.core.chat_session.conversation.messages) == 8, "three rounds"
        )
        asked = await question(chat)  # of another tool, the first time
        assert asked.call is not None
        assert asked.call.name == "do"
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
        monkeypatch.setattr("app.session.tool_rounds.MOST_ROUNDS", 2)
        chat.script.replies = [[call("1")], [call("2")], [call("3")], ["Enough."]]
        await chat.say("for ever")  # echo was agreed to
        await chat.until(lambda: chat.chat.core.chat_session.last_message.text == "Enough.")
        await chat.shows('+ echo {"text": "3"}: no more than 8 rounds of tool calls')
        assert not chat.chat.core.chat_session.is_busy
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


def lines_of(chat: Driver) -> list[str]:
    """Return the lines of the transcript that have text."""
    return [line.rstrip(" ┃") for line in chat.screen_text().splitlines() if line.strip()]


async def test_a_call_takes_one_line_with_its_result_folded() -> None:
    async with chatting(Script(replies=[[call("hi")], ["It is hi."]]), tools=TOOLS) as chat:
        await chat.say("what?")
        asked = await question(chat)
        await chat.shows('Run echo {"text": "hi"} from "own"?')
        (line,) = [line for line in lines_of(chat) if "Run echo" in line]
        assert line.endswith("y yes · a always · n no")
        assert chat.app.screen is chat.chat, "nothing covers the conversation"
        assert chat.chat.focused is asked
        await press_calmly(chat, "y")
        await chat.shows("It is hi.")
        lines = lines_of(chat)
        index = lines.index(' tool   + echo {"text": "hi"}: hi')
        assert "It is hi." in lines[index + 2]
        assert "(calls echo)" not in chat.screen_text()
        assert chat.chat.focused is chat.prompt


async def test_the_same_call_is_not_asked_about_again() -> None:
    replies = [[call("hi")], [call("hi")], ["<tools></tools>"]]
    async with chatting(Script(replies=replies), tools=TOOLS) as chat:
        await chat.say("what?")
        await question(chat)
        await press_calmly(chat, "y")
        await chat.note(
            "the model wrote nothing about the results of the tools: /regen asks again, or ask in "
            "other words"
        )
        assert not chat.chat.core.chat_session.is_busy


async def test_an_empty_reply_with_tools_is_tried_without() -> None:
    tools = replace(TOOLS, servers=(replace(TOOLS.servers[0], always=("echo",)),))
    replies = [["<tools>", "</tools>"], ["Once upon a time."]]
    async with chatting(Script(replies=replies), tools=tools) as chat:
        await chat.say("write a story")
        await chat.shows("Once upon a time.")
        await chat.note("the model wrote nothing: asking once more, without tools")
        assert len(chat.transcript.query(ReplyView)) == 1


async def test_a_question_waits_while_a_message_is_typed() -> None:
    gate = Gate()
    script = Script(replies=[[call("hi")], ["Well."]], token_gate=gate)
    async with chatting(script, tools=TOOLS) as chat:
        await chat.say("what?")
        chat.prompt.focus()
        chat.prompt.show_text("and the")
        gate.open()
        await question(chat)
        assert chat.chat.focused is chat.prompt
        await chat.shows("goes to the question of a tool")
        await chat.pilot.press("y")
        assert chat.prompt.text == "and they"
        await chat.pilot.press("escape")
        await chat.shows("The user refused this call.")
        await chat.shows("Well.")
        assert chat.prompt.text == "and they"


async def test_a_saved_call_takes_one_line() -> None:
    async with chatting(Script(replies=[[call("hi")], ["It is hi."]]), tools=TOOLS) as chat:
        await chat.say("what?")
        await question(chat)
        await press_calmly(chat, "y")
        await chat.shows("It is hi.")
    async with chatting(Script(), tools=TOOLS) as chat:
        await chat.shows("It is hi.")
        assert "(calls echo)" not in chat.screen_text()
        assert '+ echo {"text": "hi"}: hi' in chat.screen_text()


def test_all_arguments_are_shown_as_plain_text() -> None:
    text = full_arguments(
        ToolCall("echo", json.dumps({"a\nb": "\x1b[2J\u202e", "n": [1, {"x": "\x9b"}]}))
    )
    assert text == '"a\\nb": "\\u001b[2J\ufffd"\n"n": [1, {"x": "\ufffd"}]'
    assert full_arguments(ToolCall("echo")) == "(no arguments)"
