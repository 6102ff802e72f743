"""``/system keep``: new conversations begin with the system prompt or persona saved for a model."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from app.cli import line_mode
from app.conversations.store import Store, model_key
from app.program import paths, state
from app.program.personas import Persona, save_persona
from app.program.refusals import Refusal
from app.program.settings import Settings, built_in_settings, merge, override
from app.session.chat_session import ChatSession
from app.session.commands import choose_among_personas, choose_sampling, new_system, replace_system
from app.session.events import ModelLoaded
from app.session.system_commands import reply_about_system, starting_line
from tests.app.backend.engine_driver import Engine
from tests.app.chat_driver import chatting
from tests.app.fake_engine import Script
from tests.app.scripted_access import use_script

MODEL = "m.gguf"


class Programs:
    """Programs that are started one after another."""

    def __init__(self) -> None:
        self.engine: Engine | None = None

    def start(self, settings: Settings | None = None, model: str = MODEL) -> Engine:
        """Start a program with a model, which ends the one before."""
        self.close()
        settings = settings or built_in_settings()
        engine = Engine(Script(), recalls_choices=True, settings=settings)
        engine.chat_session = ChatSession(engine.engine_thread, settings.system_prompt)
        self.engine = engine
        load(engine, model)
        return engine

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()


@pytest.fixture
def programs() -> Iterator[Programs]:
    programs = Programs()
    yield programs
    programs.close()


def load(engine: Engine, name: str, keeps: bool = True) -> None:
    assert engine.chat_session.load(Path(name), keeps, rereads=False)
    engine.wait_for(ModelLoaded)


def system(engine: Engine, argument: str = "") -> str:
    """Carry out ``/system`` and return its line."""
    session = engine.chat_session
    line = reply_about_system(engine.engine_thread, session, argument)
    if not line:
        assert session.change_conversation(replace_system(new_system(argument)))
    return line


def begun(engine: Engine) -> tuple[str | None, str, dict[str, float]]:
    """Return system prompt, persona and sampling of the conversation."""
    conversation = engine.chat_session.conversation
    options = conversation.options
    return conversation.system, options.persona, dict(options.sampling)


def use_persona(engine: Engine, name: str) -> None:
    chosen = choose_among_personas(engine.chat_session, name)
    assert chosen.persona is not None
    assert engine.chat_session.start_new(chosen.persona.system, chosen.sampling, name)


def test_a_saved_prompt_begins_conversations(programs: Programs) -> None:
    engine = programs.start()
    system(engine, "Be brief.")
    assert system(engine, "keep") == (
        "system prompt: remembered for new conversations with this model (/system forget)"
    )
    engine = programs.start()
    assert begun(engine) == ("Be brief.", "", {})
    assert system(engine) == "system prompt (remembered for this model): Be brief."
    assert starting_line(engine.engine_thread, engine.chat_session) == (
        "system prompt, remembered for this model: Be brief. (/system forget)"
    )
    system(engine, "Be kind.")
    assert system(engine) == "system prompt: Be kind."
    assert starting_line(engine.engine_thread, engine.chat_session) == ""
    engine.ask("hi")
    assert engine.chat_session.start_next()
    assert begun(engine)[0] == "Be brief."


def test_a_prompt_that_is_forgotten_begins_nothing(programs: Programs) -> None:
    engine = programs.start()
    system(engine, "Be brief.")
    system(engine, "keep")
    engine = programs.start()
    assert system(engine, "forget").startswith("forgotten for this model")
    assert begun(engine)[0] == "Be brief."
    assert begun(programs.start()) == (None, "", {})
    with pytest.raises(Refusal, match="no system prompt is remembered for this model"):
        system(programs.start(), "forget")


def test_other_models_begin_as_the_settings_say(programs: Programs) -> None:
    settings = merge(built_in_settings(), {"system_prompt": "Be kind."}, "a file")
    engine = programs.start(settings)
    assert system(engine) == "system prompt (your file): Be kind."
    system(engine, "Be brief.")
    system(engine, "keep")
    engine = programs.start(settings, "other.gguf")
    assert begun(engine)[0] == "Be kind."
    load(engine, MODEL)
    assert begun(engine)[0] == "Be brief."
    load(engine, "other.gguf")
    assert begun(engine)[0] == "Be kind."


def test_a_prompt_chosen_before_its_first_message_stays(programs: Programs) -> None:
    engine = programs.start()
    system(engine, "Be brief.")
    system(engine, "keep")
    engine = programs.start(model="other.gguf")
    system(engine, "Be rude.")
    load(engine, MODEL)
    assert begun(engine)[0] == "Be rude."


@pytest.mark.parametrize("keeps", [True, False])
def test_a_conversation_keeps_its_prompt(programs: Programs, keeps: bool) -> None:
    engine = programs.start()
    system(engine, "Be brief.")
    system(engine, "keep")
    engine = programs.start(model="other.gguf")
    engine.ask("hi")
    load(engine, MODEL, keeps)
    if keeps:
        assert begun(engine)[0] is None
        assert starting_line(engine.engine_thread, engine.chat_session) == ""
    else:
        assert begun(engine)[0] == "Be brief."


def test_the_command_line_wins_over_a_saved_prompt(programs: Programs) -> None:
    engine = programs.start()
    system(engine, "Be brief.")
    system(engine, "keep")
    settings = override(built_in_settings(), "system_prompt", "Be kind.", "--system")
    engine = programs.start(settings)
    assert begun(engine)[0] == "Be kind."
    assert system(engine) == "system prompt (command line): Be kind."
    assert starting_line(engine.engine_thread, engine.chat_session) == ""
    assert engine.chat_session.start_next()
    assert begun(engine)[0] == "Be kind."


def test_a_persona_is_saved_by_its_name(programs: Programs) -> None:
    save_persona("cool", Persona("Be exact.", {"temperature": 0.25, "top_k": 9}))
    engine = programs.start()
    use_persona(engine, "cool")
    assert system(engine, "keep").startswith("persona cool: remembered for new conversations")
    directory = paths.personas_dir()
    assert directory is not None
    file = directory / "cool.md"
    file.write_text(file.read_text().replace("exact", "precise"))
    engine = programs.start()
    assert begun(engine) == ("Be precise.", "cool", {"temperature": 0.25, "top_k": 9})
    assert system(engine) == (
        "system prompt (persona cool, remembered for this model): Be precise."
    )
    settings = override(built_in_settings(), "sampling.top_k", 3, "--top-k")
    assert begun(programs.start(settings))[2] == {"temperature": 0.25}


def test_values_of_set_keep_win_over_those_of_a_persona(programs: Programs) -> None:
    save_persona("cool", Persona("Be exact.", {"temperature": 0.25, "top_k": 9}))
    engine = programs.start()
    use_persona(engine, "cool")
    choose_sampling(engine.engine_thread, engine.chat_session, "temperature 0.5")
    choose_sampling(engine.engine_thread, engine.chat_session, "keep")
    system(engine, "keep")
    engine = programs.start()
    assert begun(engine)[2] == {"temperature": 0.5, "top_k": 9}
    use_persona(engine, "plain")
    engine.chat_session.start_next()
    assert begun(engine) == ("Be exact.", "cool", {"temperature": 0.5, "top_k": 9})


def test_a_missing_persona_is_named_in_one_line(programs: Programs) -> None:
    save_persona("cool", Persona("Be exact."))
    engine = programs.start()
    use_persona(engine, "cool")
    system(engine, "keep")
    directory = paths.personas_dir()
    assert directory is not None
    (directory / "cool.md").unlink()
    engine = programs.start()
    assert begun(engine) == (None, "", {})
    line = starting_line(engine.engine_thread, engine.chat_session)
    assert line.startswith("remembered for this model, but there is no persona 'cool'")
    assert system(engine, "forget").startswith("forgotten")


def test_nothing_to_remember_is_refused(programs: Programs) -> None:
    engine = programs.start()
    with pytest.raises(Refusal, match="there is no system prompt to remember"):
        system(engine, "keep")
    system(engine, "x" * (state.MAX_PROMPT_CHARS + 1))
    with pytest.raises(Refusal, match="over 4000 characters is not remembered; /persona save"):
        system(engine, "keep")
    assert state.load_state()[0].prompts == {}


# ---- the file


def test_the_largest_prompts_fit_the_file() -> None:
    prompt = state.ModelPrompt("\U0001f600" * state.MAX_PROMPT_CHARS)
    for index in range(20):
        assert state.remember_prompt(f"/m{index}", prompt) is None
    saved, trouble = state.load_state()
    assert trouble is None
    assert list(saved.prompts) == [f"/m{index}" for index in range(4, 20)]


def test_invalid_prompts_in_the_file_are_ignored() -> None:
    file = paths.state_file()
    assert file is not None
    file.parent.mkdir(parents=True, exist_ok=True)
    prompts = {
        "/a": {"system": "Be\x1b brief."},
        "/b": {"system": 3},
        "/c": "x",
        "/d": {"system": "x" * 4001},
        "/e": {},
        "/f": {"persona": "cool\x1b", "later": 1},
    }
    file.write_text(json.dumps({"version": 1, "theme": "amber", "prompts": prompts}))
    saved, trouble = state.load_state()
    assert trouble is None
    assert saved.theme == "amber"
    assert saved.prompts == {
        "/a": state.ModelPrompt("Be␛ brief."),
        "/f": state.ModelPrompt(persona="cool␛"),
    }
    file.write_text('{"version": 1, "theme": "amber", "prompts": [1]}')
    assert state.load_state() == (state.ProgramState(theme="amber"), None)


# ---- line mode and screen


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    script = use_script(monkeypatch, Script())

    def say(*lines: str) -> str:
        monkeypatch.setattr(sys, "stdin", StringIO("".join(f"{line}\n" for line in lines)))
        line_mode.chat(MODEL, replace(built_in_settings(), resume="new"), script.clock)
        return capsys.readouterr().err

    return say


def test_line_mode_begins_with_the_saved_prompt(talk: Callable[..., str]) -> None:
    err = talk("/system Be brief.", "/system keep")
    assert "system prompt: remembered for new conversations with this model" in err
    err = talk("/system", "hi", "/new", "hello")
    assert err.count("system prompt, remembered for this model: Be brief. (/system forget)") == 2
    assert "system prompt (remembered for this model): Be brief." in err
    assert Store().read("000001").conversation.system == "Be brief."
    assert Store().read("000002").conversation.system == "Be brief."
    assert "forgotten for this model" in talk("/system forget")
    assert "remembered" not in talk("/new")


async def test_the_screen_begins_with_the_saved_prompt() -> None:
    async with chatting() as driver:
        await driver.say("/system keep")
        await driver.note("there is no system prompt to remember")
        await driver.say("/system Be brief.")
        await driver.say("/system KEEP")
        await driver.note("system prompt: remembered for new conversations with this model")
    async with chatting() as driver:
        await driver.note("system prompt, remembered for this model: Be brief. (/system forget)")
        await driver.say("/system")
        await driver.note("system prompt (remembered for this model): Be brief.")
        await driver.ask("hello")
        await driver.say("/persona plain")
        await driver.note("persona plain")
        await driver.say("/new")
        await driver.note("system prompt, remembered for this model: Be brief.")
        session = driver.chat.core.chat_session
        assert session.conversation.system == "Be brief."
        assert session.conversation.options.persona == ""
        await driver.say("/system forget")
        await driver.note("forgotten for this model")
        assert session.model is not None
        assert model_key(session.model.path) not in state.load_state()[0].prompts
