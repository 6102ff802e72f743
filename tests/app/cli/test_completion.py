"""Shell completion, and suggestions for a mistyped command."""

import shutil
import subprocess

import pytest

from app.cli.arguments import COMMANDS, parse
from app.cli.completion import completion
from tests.app.chat_driver import chatting


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_every_command_and_its_options(shell, capsys):
    assert completion(shell) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS)
    assert "max-tokens" in script


def test_bash_completes_commands_options_and_models(capsys, tmp_path):
    bash = shutil.which("bash")
    assert bash, "tests need bash"
    completion("bash")
    script = capsys.readouterr().out
    (tmp_path / "a.gguf").touch()
    (tmp_path / "notes.txt").touch()

    def completed(*words: str) -> list[str]:
        line = (
            f"COMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1}; _jalopy; printf '%s\\n' "
            f'"${{COMPREPLY[@]}}"'
        )
        done = subprocess.run(
            [bash, "-c", f"{script}\n{line}"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout.split()

    assert completed("jalopy", "mod") == ["models"]
    assert completed("jalopy", "run", "--sess") == ["--session"]
    assert completed("jalopy", "run", "a") == ["a.gguf"]
    assert completed("jalopy", "run", "st") == ["starter"]


def test_a_mistyped_command_names_the_nearest(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        parse(["bnech", "model.gguf"])
    assert end.value.code == 2
    assert (
        capsys.readouterr().err
        == "jalopy: unknown command or file: bnech (did you mean jalopy bench?)\n"
    )
    # near to nothing: opening it says that there is no such file
    assert parse(["set"]).model == "set"
    (tmp_path / "bnech").touch()
    assert parse(["bnech"]).model == "bnech"
    assert parse(["starter"]).model == "starter"


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "m.gguf", "--temp", "0.5", "two", "words"],
        ["run", "--temp", "0.5", "m.gguf", "two", "words"],
        ["run", "m.gguf", "two", "--temp", "0.5", "words"],
        ["run", "m.gguf", "two", "words", "--temp", "0.5"],
    ],
)
def test_options_may_stand_anywhere(argv: list[str]) -> None:
    options = parse(argv)
    assert options.model == "m.gguf"
    assert options.words == ["two", "words"]
    assert getattr(options, "sampling.temperature") == 0.5


def test_an_option_may_be_given_several_times() -> None:
    argv = ["run", "--file", "a.md", "m.gguf", "text", "--file", "b.md"]
    assert list(parse(argv).files) == ["a.md", "b.md"]
    assert list(parse(["run", "m.gguf", "text"]).files) == []


def test_words_after_two_dashes_are_no_options() -> None:
    assert parse(["run", "m.gguf", "--", "--temp", "0"]).words == ["--temp", "0"]


async def test_the_chat_shows_a_topic():
    async with chatting() as driver:
        await driver.say("/help thinking")
        await driver.until(lambda: "/think off" in driver.screen_text())
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)
