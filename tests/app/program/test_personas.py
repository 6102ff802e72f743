import os
from pathlib import Path

import pytest

from app.cli import arguments
from app.program import paths, personas
from app.program.personas import Persona, load_persona, persona_names, read_system_file
from app.program.refusals import Refusal
from app.program.settings import built_in_settings
from tests.app.chat_driver import chatting

BUNDLED = ["plain", "reviewer", "translator"]


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
    assert persona_names() == ["pirate", *BUNDLED[:2], "teacher", *BUNDLED[2:]]
    assert load_persona("pirate").system == "You are a pirate.␛[31m"


def test_a_persona_head_has_parameters_or_is_plain_text(directory: Path):
    (directory / "cool.md").write_text(
        "---\ntemperature: 0.25\ntop_k:  20 \nseed: -1\n---\nBe exact.\n", encoding="utf-8"
    )
    assert load_persona("cool") == Persona(
        "Be exact.", {"temperature": 0.25, "top_k": 20, "seed": -1}
    )
    (directory / "bare.md").write_text("---\ntemperature: 1e-05\n---\n", encoding="utf-8")
    assert load_persona("bare") == Persona("", {"temperature": 1e-05})
    for text in ("---\ntemperature: hot\n---\nx", "---\nnot ended", "---\n---\nx"):
        (directory / "rule.md").write_text(text, encoding="utf-8")
        assert load_persona("rule") == Persona(text)
    for key in ("temprature", "given"):
        (directory / "typo.md").write_text(f"---\n{key}: 1\n---\nx", encoding="utf-8")
        with pytest.raises(Refusal, match="persona typo: there is no parameter"):
            load_persona("typo")


def test_a_preset_is_saved_once_and_loaded(directory: Path):
    preset = Persona("Be\nexact.", {"temperature": 0.1, "seed": 2**62})
    assert "Saved" in personas.save_persona("exact one", preset)
    assert load_persona("exact one") == preset
    for name, reason in (
        ("exact one", "already"),
        ("../up", "cannot be"),
        (".x", "cannot be"),
        ("a\nb", "cannot be"),
    ):
        with pytest.raises(Refusal, match=reason):
            personas.save_persona(name, preset)
    with pytest.raises(Refusal, match="nothing to save"):
        personas.save_persona("none", Persona(""))


def test_command_line_options_win_over_a_personas_parameters(directory: Path):
    (directory / "cool.md").write_text(
        "---\ntemperature: 0.25\ntop_k: 20\n---\nBe exact.\n", encoding="utf-8"
    )
    options = arguments.parse(["--persona", "cool", "--top-k", "7"])
    settings = arguments.apply(options, built_in_settings())
    assert (settings.system_prompt, settings.sampling.temperature, settings.sampling.top_k) == (
        "Be exact.",
        0.25,
        7,
    )
    (directory / "hot.md").write_text("---\ntemperature: 199\n---\n", encoding="utf-8")
    with pytest.raises(Refusal, match="--persona hot: temperature is 199"):
        arguments.apply(arguments.parse(["--persona", "hot"]), built_in_settings())


def test_without_a_directory_there_are_those_of_the_program():
    assert persona_names() == BUNDLED
    for name in BUNDLED:
        persona = load_persona(name)
        assert 50 < len(persona.system) < 250, "small models follow short prompts"
        assert 0 < persona.parameters["temperature"] <= 0.3
    with pytest.raises(Refusal, match="known: plain, reviewer, translator"):
        load_persona("pirate")


def test_a_file_of_the_user_replaces_one_of_the_program(directory: Path):
    (directory / "plain.txt").write_text("Be plain.")
    assert load_persona("plain") == Persona("Be plain.")


def test_a_persona_without_a_home_directory_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(paths, "personas_dir", lambda: None)
    with pytest.raises(Refusal, match="there is no home directory"):
        personas.save_persona("pirate", Persona("You are a pirate."))


@pytest.mark.parametrize("name", ["pirat", "../../etc/passwd", "pirate.md", "x\x1by"])
def test_a_persona_name_cannot_leave_the_directory(directory: Path, name: str):
    with pytest.raises(Refusal, match=r"\((nearest|known): .*pirate") as refusal:
        load_persona(name)
    assert "\x1b" not in str(refusal.value)


def test_an_invalid_system_prompt_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(personas, "MAX_BYTES", 2048)
    cases = {"empty": b" \n", "large": b"x" * 2049, "latin": "é".encode("latin-1")}
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    for name in (*cases, "pipe", "missing", "."):
        with pytest.raises(Refusal) as refusal:
            read_system_file(tmp_path / name)
        assert "\n" not in str(refusal.value)


def test_the_command_line_accepts_one_system_prompt(directory: Path, tmp_path: Path):
    def system_prompt(*argv: str) -> str:
        return arguments.apply(arguments.parse(argv), built_in_settings()).system_prompt

    assert system_prompt("--persona", "teacher") == "You teach."
    assert system_prompt("--system-file", str(directory / "teacher.txt")) == "You teach."
    assert system_prompt("run", "m.gguf", "-p", "x", "--persona", "teacher") == "You teach."
    with pytest.raises(Refusal, match="--system and --persona both set a system prompt"):
        system_prompt("--system", "x", "--persona", "teacher")
    with pytest.raises(Refusal, match="there is no persona 'tutor'"):
        system_prompt("--persona", "tutor")


def test_a_file_in_a_missing_home_is_named():
    options = arguments.parse(["--system-file", "~no one-of-this-name/prompt.txt"])
    with pytest.raises(Refusal, match=r"~no one-of-this-name/prompt\.txt: No such file"):
        arguments.apply(options, built_in_settings())


async def test_the_persona_of_the_start_is_in_the_title_bar():
    async with chatting(system_prompt="You teach.", wait=False) as driver:
        driver.chat.core.chat_session.change_options(persona="teacher")
        await driver.until(lambda: "persona teacher" in driver.screen_text().splitlines()[0])
        await driver.say("/new")
        await driver.note("New conversation")
        assert "persona teacher" in driver.screen_text().splitlines()[0]


async def test_a_persona_starts_a_new_chat_and_a_preset_is_saved(directory: Path):
    (directory / "cool.md").write_text("---\ntemperature: 0.25\n---\nBe exact.\n", encoding="utf-8")
    (directory / "hot.md").write_text("---\ntop_k: 5\ntemperature: 199\n---\nx\n", encoding="utf-8")
    async with chatting() as driver:
        await driver.say("/persona")
        assert "pirate, plain, reviewer, teacher" in await driver.note("personas: ")
        await driver.say("/persona teacher")
        await driver.note("persona teacher: You teach.")
        await driver.until(lambda: "persona teacher" in driver.screen_text().splitlines()[0])
        assert driver.chat.core.chat_session.conversation.system == "You teach."
        await driver.say("/persona techer")
        await driver.note("there is no persona 'techer' (nearest: teacher)")
        await driver.say("/preset nosuch")
        await driver.note(
            "there is no persona 'nosuch' "
            "(known: cool, hot, pirate, plain, reviewer, teacher, translator)"
        )
        titles = {command.title for command in driver.app.get_system_commands(driver.chat)}
        assert {"Persona: pirate", "Persona: teacher"} <= titles
        await driver.say("/preset cool")
        await driver.note("persona cool: temperature 0.25 · Be exact.")
        await driver.say("/preset hot")
        await driver.note("temperature: the value is 199")
        assert driver.chat.core.chat_session.conversation.options.sampling == {"temperature": 0.25}
        await driver.say("/set top_k 9")
        await driver.say("/system Be kind.")
        await driver.until(lambda: "persona" not in driver.screen_text().splitlines()[0])
        await driver.say("/system Be exact.")
        await driver.say("/preset save mine")
        await driver.note("/persona mine starts a chat with it")
        assert load_persona("mine") == Persona("Be exact.", {"temperature": 0.25, "top_k": 9})
