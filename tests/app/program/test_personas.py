import os
from pathlib import Path

import pytest

from app.cli import arguments
from app.program import paths, personas
from app.program.personas import load_persona, persona_names, read_system_file
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from tests.app.chat_driver import chatting


@pytest.fixture
def directory() -> Path:
    path = paths.personas_dir()
    path.mkdir(parents=True)
    (path / "pirate.md").write_text("You are a pirate.\x1b[31m\n", encoding="utf-8")
    (path / "teacher.txt").write_text("You teach.\n", encoding="utf-8")
    (path / "notes.pdf").write_text("no", encoding="utf-8")
    (path / "bad\x1bname.md").write_text("no", encoding="utf-8")
    return path


def test_personas_are_the_text_files_of_the_directory(directory: Path):
    assert persona_names() == ["pirate", "teacher"]
    assert load_persona("pirate") == "You are a pirate.␛[31m"


def test_without_a_directory_there_are_none():
    assert persona_names() == []
    with pytest.raises(Refusal, match=r"put NAME\.md or NAME\.txt into"):
        load_persona("pirate")


def test_without_a_home_nobody_is_sent_to_a_directory_called_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paths, "personas_dir", lambda: None)
    with pytest.raises(Refusal, match="there is no home directory"):
        load_persona("pirate")


@pytest.mark.parametrize("name", ["pirat", "../../etc/passwd", "pirate.md", "x\x1by"])
def test_a_name_leads_nowhere_but_into_the_directory(directory: Path, name: str):
    with pytest.raises(Refusal, match="nearest: ") as refusal:
        load_persona(name)
    assert "\x1b" not in str(refusal.value)


def test_what_is_no_system_prompt_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(personas, "MAX_BYTES", 2048)
    cases = {"empty": b" \n", "large": b"x" * 2049, "latin": "é".encode("latin-1")}
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    for name in (*cases, "pipe", "missing", "."):
        with pytest.raises(Refusal) as refusal:
            read_system_file(tmp_path / name)
        assert "\n" not in str(refusal.value)


def test_the_command_line_takes_one_source_of_the_system_prompt(directory: Path, tmp_path: Path):
    def system_prompt(*argv: str) -> str:
        return arguments.apply(arguments.parse(argv), built_in_settings()).system_prompt

    assert system_prompt("--persona", "teacher") == "You teach."
    assert system_prompt("--system-file", str(directory / "teacher.txt")) == "You teach."
    assert system_prompt("run", "m.gguf", "-p", "x", "--persona", "teacher") == "You teach."
    with pytest.raises(Refusal, match="--system and --persona both give a system prompt"):
        system_prompt("--system", "x", "--persona", "teacher")
    with pytest.raises(Refusal, match="unknown persona 'tutor'"):
        system_prompt("--persona", "tutor")


def test_a_file_in_a_home_that_there_is_not_is_named():
    options = arguments.parse(["--system-file", "~nobody-of-this-name/prompt.txt"])
    with pytest.raises(Refusal, match=r"~nobody-of-this-name/prompt\.txt: No such file"):
        arguments.apply(options, built_in_settings())


async def test_a_persona_begins_a_new_conversation(directory: Path):
    async with chatting() as driver:
        await driver.say("/persona")
        assert "pirate, teacher" in await driver.note("personas: ")
        await driver.say("/persona teacher")
        await driver.note("persona teacher: You teach.")
        assert driver.chat.turns.conversation.system == "You teach."
        await driver.say("/persona tutor")
        assert "nearest: teacher" in await driver.note("unknown persona")
        titles = {command.title for command in driver.app.get_system_commands(driver.chat)}
        assert {"Persona: pirate", "Persona: teacher"} <= titles
