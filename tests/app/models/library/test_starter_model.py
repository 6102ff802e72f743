"""The bundled model in the program: chat, line mode, a single reply, and the check of ``bench``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli.arguments import parse
from app.cli.dispatch import guard, run_command
from app.program import exit_codes
from app.program.bundled_model import WHAT_IT_IS, starter_file
from tests.app.chat_driver import chatting_for_real
from tests.app.cli.test_dispatch import jalopy

pytestmark = pytest.mark.slow


@pytest.fixture
def starter() -> Path:
    path = starter_file()
    assert path is not None, "starter/starter.gguf belongs to the project"
    return path


async def test_each_of_three_turns_reads_only_new_tokens(starter: Path) -> None:
    async with chatting_for_real(starter) as chat:
        assert "F7    gets a real model" in await chat.note(WHAT_IT_IS)
        capital = await chat.ask("What is the capital of France?")
        assert "Paris" in capital.text
        await chat.ask("My name is Ada.")
        name = await chat.ask("What is my name?")
        assert "Ada" in name.text
        figures = [
            message.figures for message in chat.chat.core.chat_session.conversation.messages[1::2]
        ]
        assert all(reply_figures is not None for reply_figures in figures)
        first, second, third = (
            reply_figures for reply_figures in figures if reply_figures is not None
        )
        assert first.reused_tokens == 0
        # The cache holds all earlier tokens except the last ones of the reply. Its form forces
        # them, and up to four tokens that are forced together are not computed at the end.
        assert second.reused_tokens >= first.prompt_tokens + first.tokens - 4
        assert (
            third.reused_tokens >= second.reused_tokens + second.prompt_tokens + second.tokens - 4
        )


def test_line_mode_without_a_model_uses_the_starter(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("What is the capital of France?\n")
    done = jalopy(f"chat --plain --temp 0 <'{tmp_path / 'lines'}'")
    assert done.returncode == exit_codes.OK
    assert b"Paris" in done.stdout
    assert WHAT_IT_IS in done.stderr.decode()


def command(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[str, str]:
    """Run a command in this process and return its output and errors."""
    assert guard(lambda: run_command(parse(argv))) == exit_codes.OK
    return capsys.readouterr()


@pytest.mark.smoke
def test_a_single_reply_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = command(
        capsys, "run", "starter", "--temp", "0", "-p", "What is the capital of France?"
    )
    assert "Paris" in out
    assert out.count("\n") == 1
    assert "tok/s" in err


def test_the_starter_suggests_a_larger_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, _ = command(capsys, "run", "starter", "--temp", "1.9", "-p", "Explain photosynthesis")
    assert "I am a very small model. For more, get a real one with F3, or by: jalopy pull" in out


def test_bench_checks_the_starter_model_first(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = command(
        capsys, "bench", "starter", "-t", "1", "-p", "8", "-n", "2", "-r", "1", "--json"
    )
    report = json.loads(out)
    assert (report["starter_gate"], report["gate"], report["kernels"]) == (
        "passed",
        "passed",
        "passed",
    )
