import io
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from app.cli import arguments, line_commands
from app.cli import line_mode as plain
from app.cli.dispatch import run_command
from app.program import exit_codes
from app.program.settings import built_in_settings
from app.program.state import load_state
from engine.errors import BrokenModelError
from tests.app.fake_engine import Gate, Script
from tests.app.scripted_access import use_script

HeadlessChat = Callable[..., tuple[str, str]]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return use_script(monkeypatch, Script(replies=[["one", "."], ["two", "."], ["three", "."]]))


@pytest.fixture
def talk(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> HeadlessChat:
    """Return a function that sends lines and returns the text on stdout and stderr."""

    def say(*lines: str, **settings: Any) -> tuple[str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert (
            plain.chat("m.gguf", replace(built_in_settings(), **settings), script.clock)
            == exit_codes.OK
        )
        return capsys.readouterr()

    return say


def cache_text(script: Script) -> str:
    model = script.opened[-1]
    return model.tokenizer.decode(model.sessions[0].tokens)


def test_answers_are_on_stdout_and_everything_else_on_stderr(talk: HeadlessChat) -> None:
    out, err = talk("first", "second")
    assert out == "one.\ntwo.\n"
    assert "m · Q4_K_M · context 512 tokens" in err
    assert err.count("tok/s") == 2
    assert str(load_state()[0].last_model).endswith("/m.gguf")


def test_the_second_turn_reads_its_own_tokens_only(talk: HeadlessChat, script: Script) -> None:
    _, err = talk("first", "", "  ", "second")
    first, second = script.opened[0].sessions[0].fed_counts
    assert second < first + 3
    assert cache_text(script) == "firstone.secondtwo."
    assert "cached" in err


@pytest.mark.parametrize(
    ("lines", "system", "text", "cached_text"),
    [
        (["first", "/new", "second"], "sys", "new conversation", "syssecondtwo."),
        (
            ["/system", "first", "/system be kind", "second"],
            "",
            "There is no system prompt",
            "be kindfirstone.secondtwo.",
        ),
        (["/system -", "first"], "sys", "no system prompt", "firstone."),
    ],
)
def test_a_conversation_starts_with_the_chosen_system_prompt(
    talk: HeadlessChat, script: Script, lines: list[str], system: str, text: str, cached_text: str
) -> None:
    assert text in talk(*lines, system_prompt=system)[1]
    assert cache_text(script) == cached_text


def test_regen_answers_the_last_message_again(talk: HeadlessChat, script: Script) -> None:
    out, err = talk("/regen", "first", "/regen", "next")
    assert "there is no answer to give again" in err
    assert out == "one.\ntwo.\nthree.\n"
    assert cache_text(script) == "firsttwo.nextthree."


def test_a_failed_regen_keeps_the_earlier_answer(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Lines(io.StringIO):
        def readline(self, *_: Any) -> str:
            line = super().readline()
            script.prefill_error = BrokenModelError("m.gguf: NaN") if line == "/regen\n" else None
            return line

    monkeypatch.setattr(sys, "stdin", Lines("first\n/regen\nnext\n"))
    plain.chat("m.gguf", built_in_settings(), script.clock)
    assert "the conversation is as it was" in capsys.readouterr().err
    assert cache_text(script) == "firstone.nexttwo."


def test_a_mistyped_command_names_the_nearest(talk: HeadlessChat, script: Script) -> None:
    _, err = talk("/ne", "/sytem x", "/qit")
    for nearest in ("/new", "/system", "/quit"):
        assert f"nearest: {nearest}" in err
    assert script.opened[0].sessions[0].fed_counts == []


def test_help_lists_the_commands_and_quit_leaves(talk: HeadlessChat, script: Script) -> None:
    _, err = talk("/help", "/quit", "never sent")
    for action in line_commands.possible():
        assert f"/{action.command} {action.argument}".rstrip() in err
        assert action.title in err
    assert script.opened[0].sessions[0].fed_counts == []


def test_a_failed_turn_is_one_line_and_the_chat_goes_on(talk: HeadlessChat, script: Script) -> None:
    script.fail_after_tokens = 0
    out, err = talk("first", "second")
    assert out == ""
    assert err.count("the model computed NaN") == 2
    assert cache_text(script) == "second"  # the failed first message left the conversation


def test_a_message_that_does_not_fit_is_refused_with_counts(
    talk: HeadlessChat, script: Script
) -> None:
    out, err = talk("first", "w " * 40, "second", context_size=20)
    assert out == "one.\ntwo.\n"
    assert "Not sent: with room for a reply, this message alone needs" in err
    assert "the context holds 20" in err
    assert cache_text(script) == "firstone.secondtwo."


def test_an_empty_reply_is_reported(talk: HeadlessChat, script: Script) -> None:
    script.replies = [[]]
    assert "the model wrote nothing: /regen asks again" in talk("hello")[1]


def interrupting(*steps: str | None) -> Any:
    """Return a function that returns the next line, and raises KeyboardInterrupt for None."""
    remaining = iter(steps)

    def read() -> str | None:
        step = next(remaining, "")
        if step is None:
            raise KeyboardInterrupt
        return step or None

    return read


def test_ctrl_c_at_the_prompt_loses_nothing_and_twice_quits(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plain, "_read_line", interrupting("first", None, "second", None, None))
    assert plain.chat("m.gguf", built_in_settings(), script.clock) == exit_codes.INTERRUPTED
    out, err = capsys.readouterr()
    assert out == "one.\ntwo.\n"
    assert err.count("ctrl+c again") == 2


class InterruptingOutput(io.StringIO):
    """Send SIGINT when a word is written; the engine waits until the signal arrived."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self._word = word

    def write(self, text: str) -> int:
        if text == self._word:
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(text)


def test_a_stopped_reply_is_kept_and_the_next_ctrl_c_quits(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script.token_gate = Gate()
    script.token_gate.allow(1)
    monkeypatch.setattr(sys, "stdout", output := InterruptingOutput("one"))
    monkeypatch.setattr(plain, "_read_line", interrupting("first", None))
    assert plain.chat("m.gguf", built_in_settings(), script.clock) == exit_codes.INTERRUPTED
    assert output.getvalue() == "one\n"
    assert "stopped" in capsys.readouterr().err
    assert cache_text(script) == "firstone"


@pytest.mark.parametrize(("is_a_terminal", "resume"), [(True, "offer"), (False, "new")])
def test_a_pipe_does_not_resume_an_earlier_conversation(
    is_a_terminal, resume, monkeypatch, tmp_path
):
    modes = []
    monkeypatch.setattr(
        plain, "chat", lambda path, settings: modes.append(settings.resume) or exit_codes.OK
    )
    monkeypatch.setattr(sys, "stdin", stdin := io.StringIO("why?\n"))
    monkeypatch.setattr(stdin, "isatty", lambda: is_a_terminal, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert run_command(arguments.parse(["chat", "--plain", "starter"])) == exit_codes.OK
    assert modes == [resume]
