"""``/set``: values that are chosen in the chat, saved for a model, and refused if not allowed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.conversations.store import model_key
from app.program import paths
from app.program.refusals import Refusal
from app.program.settings import Source, built_in_settings, merge, override
from app.session.commands import choose_sampling
from app.session.events import ModelLoaded
from app.session.reply_options import (
    describe_sampling,
    parse_sampling,
    remembered_sampling,
    sampling_and_source,
)
from tests.app.backend.engine_driver import Engine
from tests.app.chat_driver import chatting
from tests.app.fake_engine import Script


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(Script(), recalls_choices=True)
    engine.load()
    yield engine
    engine.close()


def load(engine: Engine, name: str) -> None:
    assert engine.chat_session.load(Path(name))
    engine.wait_for(ModelLoaded)


def choose(engine: Engine, argument: str) -> str:
    return choose_sampling(engine.engine_thread, engine.chat_session, argument)


def chosen(engine: Engine) -> str:
    return describe_sampling(engine.chat_session.conversation.options.sampling)


def test_a_value_holds_from_the_next_message_until_a_reset(engine: Engine) -> None:
    assert (
        choose(engine, "temperature 0.3")
        == "temperature 0.3 from the next message on (/set keep remembers it)"
    )
    choose(engine, "max-tokens=200")
    assert chosen(engine) == "temperature 0.3 · max_tokens 200"
    assert engine.chat_session.request_options.sampling["max_tokens"] == 200
    assert choose(engine, "").startswith(
        "temperature 0.3 · max_tokens 200. /set temperature 0.3 changes one"
    )
    choose(engine, "reset")
    assert (chosen(engine), engine.chat_session.request_options.sampling) == ("", {})


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("temprature 1", r"there is no parameter 'temprature' \(nearest: temperature\)"),
        ("temperature 111", "the value is 111; allowed: a number from 0 to 100"),
        ("temperature nan", "the value is nan; allowed"),
        ("temperature hot", 'the value is "hot"; allowed'),
        ("top_k 1.5", "allowed: a whole number"),
        ("temperature", "temperature is .*; /set temperature VALUE changes it"),
        ("given x", "there is no parameter 'given'"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(engine: Engine, argument: str, line: str) -> None:
    with pytest.raises(Refusal, match=line):
        choose(engine, argument)
    assert chosen(engine) == ""


def test_a_saved_value_holds_for_its_model(engine: Engine) -> None:
    choose(engine, "temperature 0.3")
    assert choose(engine, "keep") == "temperature 0.3: remembered for this model"
    load(engine, "other.gguf")
    assert chosen(engine) == ""
    load(engine, "model.gguf")
    assert chosen(engine) == "temperature 0.3"
    choose(engine, "reset")
    choose(engine, "keep")
    load(engine, "other.gguf")
    load(engine, "model.gguf")
    assert chosen(engine) == ""


def test_invalid_values_in_the_state_file_are_ignored(engine: Engine) -> None:
    choose(engine, "temperature 0.3")
    choose(engine, "keep")
    file = paths.state_file()
    assert file is not None
    file.write_text(
        file.read_text().replace(
            '"temperature": 0.3', '"temperature": 199, "nosuch": 1, "top_k": 7'
        )
    )
    assert engine.chat_session.model is not None
    model = engine.chat_session.model.path
    assert remembered_sampling(model, built_in_settings()) == {"top_k": 7}


async def test_the_chat_shows_choices_next_to_the_models_name() -> None:
    async with chatting() as driver:
        await driver.say("/set temperature 0.3")
        await driver.note("temperature 0.3 from the next message on")
        await driver.shows("model · Q4_K_M · temperature 0.3")
        await driver.say("/set temperature 199")
        await driver.note("/set temperature: the value is 199; allowed: a number from 0 to 100")
        await driver.ask("hello")


def test_a_value_names_its_source() -> None:
    settings = merge(built_in_settings(), {"sampling": {"top_k": 3}}, "a file")
    advice = {
        "top_k": (20, Source.MODEL),
        "min_p": (0.2, Source.MODEL),
        "top_p": (0.8, Source.MAKER),
    }
    chosen = {"temperature": parse_sampling("temperature", "0.3")}

    def source(name: str) -> tuple[float, Source]:
        return sampling_and_source(name, chosen, settings, advice)

    assert source("top_k") == (3, Source.FILE)
    assert source("min_p") == (0.2, Source.MODEL)
    assert source("top_p") == (0.8, Source.MAKER)
    assert source("seed") == (-1, Source.DEFAULT)
    assert source("temperature") == (0.3, Source.CHOSEN)


def test_the_command_line_overrides_a_saved_value(engine: Engine) -> None:
    choose(engine, "temperature 0.3")
    choose(engine, "keep")
    assert engine.chat_session.model is not None
    model = engine.chat_session.model.path
    assert model_key(model)
    settings = override(built_in_settings(), "sampling.temperature", 1.5, "--temp")
    assert remembered_sampling(model, built_in_settings()) == {"temperature": 0.3}
    assert remembered_sampling(model, settings) == {}


def test_a_changed_setting_holds_where_nothing_is_chosen(engine: Engine) -> None:
    choose(engine, "temperature 0.3")
    engine.engine_thread.settings = override(built_in_settings(), "sampling.top_k", 5, "here")
    assert engine.chat_session.request_options.sampling == {"top_k": 5, "temperature": 0.3}
