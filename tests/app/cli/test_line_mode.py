import io
import os
import signal
import sys
from dataclasses import replace
from typing import Any

import pytest

from app.cli import arguments, line_commands
from app.cli import line_mode as plain
from app.cli.dispatch import obey
from app.program import exit_codes
from app.program.settings import built_in_settings
from app.program.state import load_state
from engine.errors import BrokenModelError
from tests.app.fake_engine import Gate, Script
from tests.app.scripted_access import use_script


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return use_script(monkeypatch, Script(replies=[["one", "."], ["two", "."], ["three", "."]]))


def talk(script: Script, monkeypatch: pytest.MonkeyPatch, *lines: str, **settings: Any) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return plain.chat("m.gguf", replace(built_in_settings(), **settings), script.clock)


def cache_text(script: Script) -> str:
    model = script.opened[0]
    return model.tokenizer.decode(model.sessions[0].tokens)


def test_answers_are_on_stdout_and_everything_else_on_stderr(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talk(script, monkeypatch, "first", "second") == exit_codes.OK
    out, err = capsys.readouterr()
    assert out == "one.\ntwo.\n"
    assert "m · Q4_K_M · context 512 tokens" in err
    assert err.count("tok/s") == 2


def test_the_second_turn_reads_its_own_tokens_only(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(script, monkeypatch, "first", "second")
    assert script.opened[0].sessions[0].fed_counts[1] < script.opened[0].sessions[0].fed_counts[0] + 3
    assert cache_text(script) == "firstone.secondtwo."
    assert "from cache" in capsys.readouterr().err


def test_empty_lines_send_nothing(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(script, monkeypatch, "", "  ", "hello")
    assert len(script.opened[0].sessions[0].fed_counts) == 1


def test_new_drops_the_conversation_but_not_the_system_prompt(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(script, monkeypatch, "first", "/new", "second", system_prompt="sys")
    assert cache_text(script) == "syssecondtwo."


def test_system_begins_a_conversation_with_the_new_prompt(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(script, monkeypatch, "/system", "first", "/system be kind", "second")
    assert "(none)" in capsys.readouterr().err
    assert cache_text(script) == "be kindsecondtwo."


def test_a_dash_begins_a_conversation_without_a_system_prompt(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(script, monkeypatch, "/system -", "first", system_prompt="sys")
    assert "without a system prompt" in capsys.readouterr().err
    assert cache_text(script) == "firstone."


def test_regen_answers_the_last_message_again(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(script, monkeypatch, "/regen", "first", "/regen", "next")
    out, err = capsys.readouterr()
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
    assert "the earlier answer stays" in capsys.readouterr().err
    assert cache_text(script) == "firstone.nexttwo."


@pytest.mark.parametrize(("typed", "nearest"), [("/ne", "/new"), ("/sytem x", "/system"), ("/q", "/quit")])
def test_a_slip_in_a_command_names_the_nearest_and_sends_nothing(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, nearest: str
) -> None:
    talk(script, monkeypatch, typed)
    assert f"nearest: {nearest}" in capsys.readouterr().err
    assert script.opened[0].sessions[0].fed_counts == []


def test_help_lists_the_commands_and_quit_leaves(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert talk(script, monkeypatch, "/help", "/quit", "never sent") == exit_codes.OK
    err = capsys.readouterr().err
    assert all(f"/{action.command}" in err and action.title in err for action in line_commands.possible())
    assert script.opened[0].sessions[0].fed_counts == []


def test_a_failed_turn_is_one_line_and_the_conversation_lives(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script.fail_after_tokens = 0
    assert talk(script, monkeypatch, "first", "second") == exit_codes.OK
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("the model computed NaN") == 2
    assert cache_text(script) == "second"  # the failed first message left the conversation


def test_a_message_that_does_not_fit_is_refused_with_counts(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(script, monkeypatch, "first", "w " * 40, "second", context_size=20)
    out, err = capsys.readouterr()
    assert out == "one.\ntwo.\n"
    assert "not sent: with room for an answer this message needs" in err
    assert "the context holds 20" in err
    assert cache_text(script) == "firstone.secondtwo."


def test_an_empty_answer_is_shown_as_one(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script.replies = [[]]
    talk(script, monkeypatch, "hello")
    assert "(empty answer)" in capsys.readouterr().err


def test_a_chat_remembers_its_model(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(script, monkeypatch)
    assert str(load_state()[0].last_model).endswith("/m.gguf")


def interrupting(*steps: str | None) -> Any:
    """Return a reader of lines that raises what Ctrl-C raises in place of None."""
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


def test_a_stopped_answer_is_kept_and_the_next_ctrl_c_quits(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class InterruptingOutput(io.StringIO):
        def write(self, text: str) -> int:
            if text == "one":
                os.kill(os.getpid(), signal.SIGINT)  # the engine stands before the next token until that is seen
            return super().write(text)

    script.token_gate = Gate()
    script.token_gate.allow(1)
    output = InterruptingOutput()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(plain, "_read_line", interrupting("first", None))
    assert plain.chat("m.gguf", built_in_settings(), script.clock) == exit_codes.INTERRUPTED
    assert output.getvalue() == "one\n"
    assert "stopped" in capsys.readouterr().err
    assert cache_text(script) == "firstone"


@pytest.mark.parametrize(("is_a_terminal", "resume"), [(True, "offer"), (False, "new")])
def test_a_pipe_does_not_resume_an_earlier_conversation(is_a_terminal, resume, monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(plain, "chat", lambda path, settings: given.append(settings.resume) or exit_codes.OK)
    monkeypatch.setattr(sys, "stdin", Terminal() if is_a_terminal else io.StringIO("why?\n"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert obey(arguments.parse(["chat", "--plain", "starter"])) == exit_codes.OK
    assert given == [resume]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
