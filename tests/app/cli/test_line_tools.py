"""Tools without a screen: asked about on a terminal, and where there is none only those that always
run."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from app.cli import line_mode, questions
from app.cli.run import RunOptions, run
from app.program import exit_codes
from app.program.settings import Settings, ToolServerSetting, ToolSettings, built_in_settings
from app.tools.toolbox import MOST_ROUNDS
from app.tui import chat_options
from tests.app.fake_engine import Script
from tests.app.scripted_access import use_script
from tests.app.tools.test_tools import CALL, Server

FENCED = '```json\n{"name": "echo", "arguments": {"text": "hi"}}\n```'


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> list[Server]:
    servers: list[Server] = []

    def make(setting: ToolServerSetting, is_stopped: Any) -> Any:
        servers.append(Server(is_stopped))
        return servers[-1]

    monkeypatch.setattr(chat_options, "_tool_server", make)
    return servers


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return use_script(
        monkeypatch, Script(replies=[["I look. ", CALL], ["It is hi."]], calls_like="<tool_call>")
    )


def with_tools(*always: str, use: str = "on") -> Settings:
    return replace(
        built_in_settings(),
        tools=ToolSettings(use, 2000, (ToolServerSetting("own", ("own",), always=always),)),
    )


def at_terminal(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Answer questions at a terminal; return the list of questions."""
    asked_questions: list[str] = []
    remaining_answers = list(answers)

    def answer(question: str, is_over: Any = None) -> str:
        asked_questions.append(question)
        return remaining_answers.pop(0)

    monkeypatch.setattr(questions, "answer_to", answer)
    for module in ("app.cli.run", "app.cli.line_mode"):
        monkeypatch.setattr(f"{module}.can_ask", lambda: True)
    return asked_questions


def test_a_run_asks_about_a_call_and_uses_its_result(
    script: Script,
    servers: list[Server],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked_questions = at_terminal(monkeypatch, "y")
    assert run(RunOptions("m.gguf", "what?"), with_tools(), script.clock) == exit_codes.OK
    out, err = capsys.readouterr()
    assert out == "I look.\nIt is hi.\n"
    assert '+ echo {"text": "hi"}: hi' in err
    (question,) = asked_questions
    assert question == 'Run echo {"text": "hi"} from "own"? (y/n, a = always in this conversation)'
    assert servers[0].called == [("echo", {"text": "hi"})]
    assert not servers[0].is_running


def test_a_refused_call_does_not_run(
    script: Script,
    servers: list[Server],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at_terminal(monkeypatch, "")
    run(RunOptions("m.gguf", "what?"), with_tools(), script.clock)
    assert "It is hi." in capsys.readouterr().out
    assert servers[0].called == []


@pytest.mark.parametrize(("always", "n_calls"), [(("echo",), 1), (("other",), 0), ((), 0)])
def test_without_a_terminal_only_always_tools_run(
    script: Script,
    servers: list[Server],
    always: tuple[str, ...],
    n_calls: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script.replies[0] = [FENCED]
    assert run(RunOptions("m.gguf", "what?"), with_tools(*always), script.clock) == exit_codes.OK
    out = capsys.readouterr().out
    assert out == ("It is hi.\n" if n_calls else f"{FENCED}\n")
    assert sum(len(server.called) for server in servers) == n_calls
    assert len(servers) == bool(always)


def test_no_tools_without_use_with_a_form_or_in_raw_text(
    script: Script, servers: list[Server], capsys: pytest.CaptureFixture[str]
) -> None:
    run(RunOptions("m.gguf", "what?"), with_tools("echo", use="off"), script.clock)
    run(RunOptions("m.gguf", "what?", raw=True), with_tools("echo"), script.clock)
    assert servers == []
    assert "without tools" not in capsys.readouterr().err


def test_json_has_the_last_reply(
    script: Script, servers: list[Server], capsys: pytest.CaptureFixture[str]
) -> None:
    run(RunOptions("m.gguf", "what?", as_json=True), with_tools("echo"), script.clock)
    assert json.loads(capsys.readouterr().out)["text"] == "It is hi."


def test_rounds_of_calls_end(
    script: Script, servers: list[Server], capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [[CALL.replace("hi", str(n))] for n in range(MOST_ROUNDS + 1)]
    script.replies = [*calls, ["Enough."]]
    run(RunOptions("m.gguf", "what?"), with_tools("echo"), script.clock)
    assert len(servers[0].called) == MOST_ROUNDS
    out, err = capsys.readouterr()
    assert "rounds of tool calls for one message" in err
    assert out == "Enough.\n"


def test_the_same_call_is_not_run_or_asked_about_again(
    script: Script,
    servers: list[Server],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script.replies = [[CALL], [CALL], ["<tools></tools>"]]
    asked_questions = at_terminal(monkeypatch, "y")
    assert run(RunOptions("m.gguf", "what?"), with_tools(), script.clock) == exit_codes.OK
    assert len(asked_questions) == 1
    assert len(servers[0].called) == 1
    assert (
        "jalopy run: the model wrote nothing about the results of the tools: run it again, or ask "
        "in other words\n" in capsys.readouterr().err
    )


def test_an_empty_reply_with_tools_is_tried_without_them(
    script: Script, servers: list[Server], capsys: pytest.CaptureFixture[str]
) -> None:
    script.replies = [["<tools></tools>"], ["Once upon a time."]]
    run(RunOptions("m.gguf", "write a story"), with_tools("echo"), script.clock)
    out, err = capsys.readouterr()
    assert out == "Once upon a time.\n"
    assert err.startswith("the model wrote nothing: asking once more, without tools\n")


def test_always_is_for_one_conversation_and_tools_are_listed(
    script: Script,
    servers: list[Server],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script.replies = [[CALL], ["One."], [CALL], ["Two."], [CALL], ["Three."]]
    asked_questions = at_terminal(monkeypatch, "a", "n")
    monkeypatch.setattr(
        sys, "stdin", io.StringIO("first\nsecond\n/new\nthird\n/tools off\n/tools\n")
    )
    assert line_mode.chat("m.gguf", with_tools(), script.clock) == exit_codes.OK
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if line] == ["One.", "Two.", "Three."]
    assert len(asked_questions) == 2
    assert len(servers[0].called) == 2
    assert err.count("own: off") == 2


def test_a_stop_at_the_question_skips_the_call(
    script: Script,
    servers: list[Server],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script.replies = [[CALL], ["Fine."]]
    at_terminal(monkeypatch)
    talks: list[Any] = []
    init = questions.CallQuestions.__setattr__

    def keep(self: Any, name: str, value: Any) -> None:
        init(self, name, value)
        talks.extend([value] if name == "chat" and value is not None else [])

    def stop(question: str, is_over: Any) -> str:
        talks[0].stop()
        assert is_over()
        return ""

    monkeypatch.setattr(questions.CallQuestions, "__setattr__", keep)
    monkeypatch.setattr(questions, "answer_to", stop)
    monkeypatch.setattr(sys, "stdin", io.StringIO("first\nsecond\n"))
    assert line_mode.chat("m.gguf", with_tools(), script.clock) == exit_codes.OK
    assert "Fine." in capsys.readouterr().out
    assert servers[0].called == []
