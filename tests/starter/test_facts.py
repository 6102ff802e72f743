"""The fact tables: complete, symmetric, and in agreement with the program."""

import re

import pytest

from app.tui.actions import ACTIONS, find_command
from starter.text import arithmetic, calendar, facts, memory, unknown
from starter.text.tables import countries, table

CONTINENTS = {"Africa", "Asia", "Europe", "North America", "South America", "Oceania"}
TERRITORIES = {"Western Sahara"}
KEY_NAMES = {"Esc": "escape", "Enter": "enter"}


def test_every_country_has_a_capital_and_a_known_continent():
    assert len(countries()) == 197
    for country in countries().values():
        assert country.capital
        assert set(country.continent.split(" and ")) <= CONTINENTS


def test_neighbours_are_neighbours_of_each_other():
    for country in countries().values():
        for name in country.neighbours:
            assert name in TERRITORIES or country.name in countries()[name].neighbours, (
                country.name,
                name,
            )


def test_no_capital_belongs_to_two_countries():
    capitals = [country.capital for country in countries().values()]
    assert len(capitals) == len(set(capitals))


@pytest.mark.parametrize(
    ("country", "capital"),
    [
        ("France", "Paris"),
        ("Equatorial Guinea", "Ciudad de la Paz"),
        ("Kazakhstan", "Astana"),
        ("Burundi", "Gitega"),
    ],
)
def test_capitals_that_changed_or_matter_most(country, capital):
    assert countries()[country].capital == capital


def test_opposites_have_one_answer_each_and_are_not_themselves():
    for word, opposite in facts.opposites().items():
        assert word != opposite
    assert not set(table("words")["without_opposite"]) & set(facts.opposites())


def test_keys_and_commands_in_answers_are_those_of_the_program():
    """Answers name keys and commands as they are in the table of actions, and those they are meant
    to name."""
    for entry in [*table("jalopy")["qa"], *table("talk")["qa"]]:
        say = " ".join(entry["say"]) if isinstance(entry["say"], list) else entry["say"]
        actions = set(_named_actions(say))
        meant = set(entry.get("actions", ()))
        assert actions == meant, say


def _named_actions(say: str):
    for command in re.findall(r"(?<!\w)/(\w+)", say):
        action = find_command(command)
        assert action is not None, f"there is no /{command}"
        yield f"{action.scope}.{action.name}"
    for key in re.findall(r"\b(?:F\d+|Ctrl\+\w|Esc|Enter)\b", say):
        textual_key = KEY_NAMES.get(key, key.lower())
        actions = [
            name
            for name, action in ACTIONS.items()
            if textual_key in action.keys.split(",") and action.scope in ("app", "chat", "prompt")
        ]
        assert actions, f"no action has the key {key}"
        yield from actions


def test_keys_asked_about_exist():
    """Questions such as "What does F4 do?" are answered with the action that has that key."""
    for entry in [*table("jalopy")["qa"], *table("talk")["qa"]]:
        for ask in entry["ask"]:
            for key in re.findall(r"\b(?:F\d+|Ctrl\+\w)\b", ask):
                keyed = {
                    name
                    for name, action in ACTIONS.items()
                    if key.lower() in action.keys.split(",")
                }
                assert keyed & set(entry.get("actions", ())), ask
            for command in re.findall(r"What does /(\w+) do", ask):
                action = find_command(command)
                assert action is not None
                assert f"{action.scope}.{action.name}" in entry.get("actions", ()), ask


def test_answers_to_unknown_questions_name_the_models_screen():
    for name in ("say_unknown", "say_task"):
        assert list(_named_actions(table("unknown")[name])) == ["app.models"]


def test_slots_of_the_unknown_questions_can_all_be_filled():
    filled = {
        "country",
        "place",
        "Name",
        "word",
        "Word",
        "number1",
        "number2",
        "number3",
        *table("unknown")["slots"],
    }
    for wording in unknown.wordings():
        assert set(re.findall(r"\{(\w+)\}", wording)) <= filled, wording


def test_numbers_in_words():
    assert [arithmetic.spelled(n) for n in (0, 13, 20, 47, 99)] == [
        "zero",
        "thirteen",
        "twenty",
        "forty-seven",
        "ninety-nine",
    ]


def test_wordings_are_not_empty():
    for topic in (arithmetic, calendar, memory, facts):
        assert all(wording.strip() for wording in topic.wordings())


@pytest.mark.parametrize("topic", ["geography", "arithmetic", "calendar", "opposites"])
def test_more_wordings_use_the_kinds_and_slots_of_the_first_ones(topic: str):
    few = table("wordings")[topic]
    for question_type, wordings in table(f"more/{topic}").items():
        assert slots(wordings) <= slots(
            [wording for of_kind in few.values() for wording in of_kind]
        ), question_type
        assert question_type in few


def slots(wordings: list[str]) -> set[str]:
    return {name for wording in wordings for name in re.findall(r"\{(?:[aA]n )?(\w+)\}", wording)}
