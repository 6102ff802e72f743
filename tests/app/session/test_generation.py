"""``/set``: values chosen in the chat are saved for a model, and refused if they are invalid."""

from pathlib import Path

import pytest

from app.program import paths
from app.program.refusals import Refusal
from app.program.settings import Source, built_in_settings, merge, override
from app.session.generation import GenerationChoice
from tests.app.chat_driver import chatting


@pytest.fixture
def choice() -> GenerationChoice:
    generation_choice = GenerationChoice(built_in_settings())
    generation_choice.recall(Path("/models/a.gguf"))
    return generation_choice


def test_a_value_is_used_from_the_next_message_until_a_reset(choice: GenerationChoice) -> None:
    assert (
        choice.run_command("temperature 0.3")
        == "temperature 0.3 from the next message on (/set keep remembers it)"
    )
    choice.run_command("max-tokens=200")
    assert (choice.described(), choice.max_tokens) == ("temperature 0.3 · max_tokens 200", 200)
    assert choice.run_command("").startswith(
        "temperature 0.3 · max_tokens 200. /set temperature 0.3 changes one"
    )
    choice.run_command("reset")
    assert (choice.described(), choice.max_tokens) == ("", built_in_settings().sampling.max_tokens)


@pytest.mark.parametrize(
    ("arguments", "line"),
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
def test_an_invalid_value_is_refused_and_changes_nothing(
    choice: GenerationChoice, arguments: str, line: str
) -> None:
    with pytest.raises(Refusal, match=line):
        choice.run_command(arguments)
    assert choice.described() == ""


def test_a_saved_value_is_used_at_the_next_start(choice: GenerationChoice) -> None:
    choice.run_command("temperature 0.3")
    assert choice.run_command("keep") == "temperature 0.3: remembered for this model"
    later_choice = GenerationChoice(built_in_settings())
    later_choice.recall(Path("/models/b.gguf"))
    assert later_choice.described() == ""
    later_choice.recall(Path("/models/a.gguf"))
    assert later_choice.described() == "temperature 0.3"
    later_choice.run_command("reset")
    later_choice.run_command("keep")
    choice.recall(Path("/models/a.gguf"))
    assert choice.described() == ""


def test_invalid_values_in_the_state_file_are_ignored(choice: GenerationChoice) -> None:
    choice.run_command("temperature 0.3")
    choice.run_command("keep")
    file = paths.state_file()
    assert file is not None
    file.write_text(
        file.read_text().replace(
            '"temperature": 0.3', '"temperature": 199, "nosuch": 1, "top_k": 7'
        )
    )
    choice.recall(Path("/models/a.gguf"))
    assert choice.described() == "top_k 7"


async def test_the_chat_shows_chosen_values_with_the_model_name() -> None:
    async with chatting() as driver:
        await driver.say("/set temperature 0.3")
        await driver.note("temperature 0.3 from the next message on")
        await driver.shows("model · Q4_K_M · temperature 0.3")
        await driver.say("/set temperature 199")
        await driver.note("/set temperature: the value is 199; allowed: a number from 0 to 100")
        await driver.ask("hello")


def test_a_value_has_a_source_and_options_override_saved_ones() -> None:
    settings = merge(built_in_settings(), {"sampling": {"top_k": 3}}, "a file")
    choice = GenerationChoice(settings)
    choice.recall(
        Path("/models/a.gguf"),
        {"top_k": (20, Source.MODEL), "min_p": (0.2, Source.MODEL), "top_p": (0.8, Source.MAKER)},
    )
    assert choice.source("top_k") == (3, Source.FILE)
    assert choice.source("min_p") == (0.2, Source.MODEL)
    assert choice.source("top_p") == (0.8, Source.MAKER)
    assert choice.source("seed") == (-1, Source.DEFAULT)
    choice.run_command("temperature 0.3")
    choice.run_command("keep")
    assert choice.source("temperature") == (0.3, Source.CHOSEN)
    choice.use(override(settings, "sampling.top_k", 5, "here"))
    assert (choice.described(), choice.source("top_k")[0]) == ("temperature 0.3", 5)
    overridden = GenerationChoice(override(settings, "sampling.temperature", 1.5, "--temp"))
    overridden.recall(Path("/models/a.gguf"))
    assert overridden.source("temperature") == (1.5, Source.COMMAND_LINE)
