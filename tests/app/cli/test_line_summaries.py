"""The line mode lets the model summarize a context that fills."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from app.backend.engine_thread import EngineThread
from app.cli import line_mode
from app.conversations.conversation import SUMMARY_HEADING
from app.conversations.store import Store
from app.program import exit_codes
from app.program.settings import built_in_settings
from app.session import summaries
from tests.app.fake_engine import Gate, Script
from tests.app.scripted_access import use_script

WORDS = ["word", *[" word"] * 79]
QUESTIONS = [f"question {n}" for n in range(4)]
WAITS = "Summarizing the oldest turns"
SUMMARIZED = "The model now reads a summary of the first 6 messages"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    replies = [[*WORDS, f" {n}."] for n in range(4)]
    return use_script(
        monkeypatch, Script(replies=[*replies, ["It", " is", " short."], ["Then."]], n_ctx=400)
    )


def chat(setting: str, script: Script, model: str = "m.gguf") -> None:
    settings = replace(built_in_settings(), compact=setting)
    assert line_mode.chat(model, settings, script.clock) == exit_codes.OK


def pipe(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def type_lines(monkeypatch: pytest.MonkeyPatch, next_line: Callable[[], str | None]) -> None:
    """Let lines come from a user at a terminal."""
    monkeypatch.setattr(line_mode, "_is_typed", lambda: True)
    monkeypatch.setattr(line_mode, "_read_line", next_line)


def wait_until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_s
        threading.Event().wait(0.001)


def cache_text(script: Script) -> str:
    model = script.opened[-1]
    return model.tokenizer.decode(model.sessions[0].tokens)


def test_a_full_context_is_summarized_before_the_next_piped_line(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, *QUESTIONS, "next")
    chat("on", script)
    out, err = capsys.readouterr()
    assert out.endswith("Then.\n")
    assert err.index(WAITS) < err.index(SUMMARIZED)
    assert "It is short." not in out
    assert "It is short." in cache_text(script)
    assert "question 0" in cache_text(script), "it is quoted"
    summary = Store().read("000001").conversation.summary
    assert summary is not None
    assert summary.text.startswith("It is short.")


@pytest.mark.parametrize("setting", ["ask", "off"])
def test_other_settings_only_name_the_command(
    script: Script,
    setting: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pipe(monkeypatch, *QUESTIONS)
    chat(setting, script)
    err = capsys.readouterr().err
    assert "% full" in err
    assert ("/compact lets the model" in err) == (setting == "ask")
    assert WAITS not in err


def test_a_piped_command_waits_for_no_summary(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = Gate()
    lines = iter([*QUESTIONS, "/context", None])

    def next_line() -> str | None:
        line = next(lines)
        if line == QUESTIONS[-1]:
            gate.allow(len(WORDS) + 2)
            script.token_gate = gate
        return line

    monkeypatch.setattr(line_mode, "_read_line", next_line)
    chat("on", script)
    assert SUMMARIZED not in capsys.readouterr().err


def test_the_model_summarizes_while_a_user_pauses(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter([*QUESTIONS, "next", None])

    def next_line() -> str | None:
        line = next(lines)
        if line == "next":
            wait_until(lambda: SUMMARY_HEADING in cache_text(script))
        return line

    type_lines(monkeypatch, next_line)
    chat("on", script)
    out, err = capsys.readouterr()
    assert out.endswith("Then.\n")
    assert SUMMARIZED in err


def test_a_line_of_the_user_ends_a_summary(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter([*QUESTIONS, "", "next", None])
    gate = Gate()

    def next_line() -> str | None:
        line = next(lines)
        if line == QUESTIONS[-1]:
            gate.allow(len(WORDS) + 2)
            script.token_gate = gate
        elif line == "":
            assert gate.waiting.wait(60)
        return line

    def cancel(engine_thread: EngineThread) -> None:
        cancel_reply(engine_thread)
        gate.open()

    cancel_reply = EngineThread.cancel
    monkeypatch.setattr(EngineThread, "cancel", cancel)
    type_lines(monkeypatch, next_line)
    chat("on", script)
    out, err = capsys.readouterr()
    assert out.endswith("Then.\n")
    assert SUMMARIZED not in err


def test_the_starter_model_writes_no_summary(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(summaries, "is_starter", lambda path: True)
    pipe(monkeypatch, *QUESTIONS, "/compact")
    chat("on", script)
    err = capsys.readouterr().err
    assert WAITS not in err
    assert "the starter model cannot summarize" in err
