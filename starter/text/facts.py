"""Facts in tables, opposites, single facts, Jalopy, and small talk."""

from __future__ import annotations

from functools import cache
from typing import Any

from starter.grammar import expand
from starter.text import invented
from starter.text.tables import Turn, Writer, table, wordings_of

OPPOSITE = wordings_of("opposites")["opposite"]

LISTS = ("everyday", "jalopy", "talk")
"""The files of single facts."""


@cache
def opposites() -> dict[str, str]:
    """Return each word with its opposite, both ways; of several the first."""
    opposites_by_word: dict[str, str] = {}
    for pair in table("words")["opposites"]:
        word, opposite = pair.split()
        opposites_by_word.setdefault(word, opposite)
        opposites_by_word.setdefault(opposite, word)
    return opposites_by_word


def opposite_turns(rng: Writer) -> list[Turn]:
    """Ask for an opposite, or for some in a row."""
    conversation = [_opposite(rng)]
    while rng.random() < 0.3:
        if rng.random() < 0.4:
            word = rng.choice(sorted(opposites()))
            conversation.append(
                (
                    expand(
                        rng.choice(
                            [
                                "And of {a}?",
                                "And {a}?",
                                "What about {a}?",
                                "And the opposite of {a}?",
                            ]
                        ),
                        rng,
                        {"a": word},
                    ),
                    _say_opposite(word),
                )
            )
        else:
            conversation.append(_opposite(rng))
    return conversation


def _opposite(rng: Writer) -> Turn:
    if rng.random() < 0.06:
        word = rng.choice([*table("words")["without_opposite"], invented.word(rng)])
        return expand(rng.wording(*OPPOSITE), rng, {"a": word}), f"I know no opposite of {word}."
    word = rng.choice(sorted(opposites()))
    return expand(rng.wording(*OPPOSITE), rng, {"a": word}), _say_opposite(word)


def _say_opposite(word: str) -> str:
    return f"The opposite of {word} is {opposites()[word]}."


def relation_turns(rng: Writer) -> list[Turn]:
    """Ask for something in one of the tables, sometimes for something that is not in it."""
    relations = table("relations")["relation"]
    relation = rng.choices(relations, [len(r["rows"]) ** 0.5 for r in relations])[0]
    conversation = [_from_table(relation, rng)]
    while rng.random() < 0.2:
        conversation.append(_from_table(relation, rng))
    return conversation


def _from_table(relation: dict[str, Any], rng: Writer) -> Turn:
    ask = rng.wording(relation["ask"], relation.get("more", ()))
    if relation.get("strangers") and rng.random() < 0.12:
        return expand(ask, rng, {"a": rng.choice(relation["strangers"])}), table("unknown")[
            "say_unknown"
        ]
    a, b = rng.choice(relation["rows"])
    return expand(ask, rng, {"a": a}), expand(
        relation["say"].replace("{b}", b[:1].upper() + b[1:], 1)
        if relation["say"].startswith("{b}")
        else relation["say"],
        rng,
        {"a": a, "b": b},
    )


def listed_turns(name: str, rng: Writer) -> list[Turn]:
    """Ask one of the questions in ``everyday``, ``jalopy`` or ``talk``, or some in a row."""
    conversation = [_from_list(name, rng)]
    while rng.random() < (0.35 if name == "jalopy" else 0.15):
        conversation.append(_from_list(name, rng))
    return conversation


def _from_list(name: str, rng: Writer) -> Turn:
    entries = table(name)["qa"]
    entry = rng.choices(entries, [entry.get("weight", 1) for entry in entries])[0]
    say = entry["say"] if isinstance(entry["say"], list) else [entry["say"]]
    return expand(rng.wording(entry["ask"], entry.get("more", ())), rng), rng.choice([say[0], *say])


def wordings() -> list[str]:
    """Return all wordings of the user."""
    entries = [
        *table("relations")["relation"],
        *(entry for name in LISTS for entry in table(name)["qa"]),
    ]
    few_wordings, many_wordings = OPPOSITE
    return [
        *few_wordings,
        *many_wordings,
        *(ask for entry in entries for ask in [*entry["ask"], *entry.get("more", ())]),
    ]
