"""Write ``starter/fence.json``: ``python -m starter.make_fence``.

``app/reply/starter_fence.py`` holds the starter model to this file. It contains each question of
the training text as the words of its wordings, with the answers of the training text. It follows
from ``starter/facts`` alone; a test compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

from app.reply.known_questions import LIGHT_WORDS, NUMBER, important_words, normalize
from starter.grammar import capital, fill
from starter.text import arithmetic, calendar, facts, geography, memory
from starter.text.tables import Writer, countries, table

FILE = Path(__file__).with_name("fence.json")
_MOST_SENTENCES = 64
"""Limit on the sentences that a wording's alternatives make."""
_MARK = "zz"
"""Prefix of the words that stand for slots."""
Says = dict[str, list[str]]


def main() -> None:
    """Write the file."""
    FILE.write_text(written(), encoding="utf-8")
    print(f"{FILE.name}: {FILE.stat().st_size / 1e3:.0f} kB")


def written() -> str:
    """Return the file's text."""
    kinds = without_doubtful(
        [*_geography(), *_sums(), *_calendar(), *_tables(), *_lists(), *_memory()]
    )
    fence = {
        **table("care"),
        "values": _values(),
        "replies": _replies(),
        "tells": _tells(),
        "told values": _told_values(),
        "kinds": kinds,
    }
    return json.dumps(fence, ensure_ascii=False, indent=0) + "\n"


def question_type(
    name: str, slots: dict[str, str], wordings: Iterable[str], says: Says, is_ordered: bool = False
) -> dict[str, Any]:
    """Return a type of question; ``slots`` maps names of slots in the wordings to their tables."""
    is_ordered = is_ordered or NUMBER in slots.values()
    asks = {
        ask
        for wording in wordings
        for sentence in sentences(wording)
        for ask in _ask(sentence, slots, is_ordered)
    }
    return {
        "name": name,
        "slots": list(slots.values()),
        "ordered": is_ordered,
        "asks": sorted(asks),
        "says": says,
    }


def _ask(sentence: str, slots: dict[str, str], is_ordered: bool) -> Iterator[str]:
    marked = re.sub(
        r"\{(?:[aA]n )?(\w+)\}s?", lambda match: f" {_MARK}{match[1].lower()} ", sentence
    )
    words = important_words(marked)
    marks = [word.removeprefix(_MARK) for word in words if word.startswith(_MARK)]
    if sorted(marks) != sorted(slots):
        return
    if not is_ordered:
        yield " ".join(word for word in words if not word.startswith(_MARK))
        return
    numbers = [mark for mark in marks if slots[mark] == NUMBER]
    order = " <yx" if len(numbers) == 2 and numbers != list(slots) else ""
    yield (
        " ".join(
            "*" if word.startswith(_MARK) else word for word in words if word not in LIGHT_WORDS
        )
        + order
    )


def sentences(wording: str) -> Iterator[str]:
    """Yield the sentences of a wording with alternatives; slots are not filled."""
    pieces = re.split(r"\[([^\[\]]*)\]", wording)
    choices = [piece.split("|") if index % 2 else [piece] for index, piece in enumerate(pieces)]
    for chosen in islice(product(*choices), _MOST_SENTENCES):
        yield "".join(chosen)


def without_doubtful(kinds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove wordings that would ask for two different things."""
    entries_by_wording: dict[tuple[str, str], list[tuple[dict[str, Any], str]]] = {}
    for entry in kinds:
        if not entry["ordered"]:
            continue
        for ask in entry["asks"]:
            entries_by_wording.setdefault(
                (str(sorted(entry["slots"])), ask.partition(" <")[0]), []
            ).append((entry, ask))
    for entries in entries_by_wording.values():
        if len(entries) < 2:
            continue
        for entry, ask in entries:
            entry["asks"].remove(ask)
    return kinds


def _wordings(topic: dict[str, tuple[list[str], list[str]]], name: str) -> list[str]:
    few_wordings, many_wordings = topic[name]
    return [*few_wordings, *many_wordings]


def _geography() -> Iterator[dict[str, Any]]:
    ask = geography.ASK
    all_countries = list(countries().values())
    rng = Writer(0)
    for name in ("capital", "continent", "neighbours", "how many", "about", "both"):
        says = {country.name: [geography.answer(name, country, rng)] for country in all_countries}
        yield question_type(name, {"country": "country"}, _wordings(ask, name), says)
    borders = {
        country.name: [
            f"{capital(country.name)} borders {neighbour}." for neighbour in country.neighbours
        ]
        or [geography.answer("neighbours", country, rng)]
        for country in all_countries
    }
    yield question_type(
        "a neighbour", {"country": "country"}, _wordings(ask, "a neighbour"), borders
    )
    capital_owners = {
        country.capital: [geography.answer("whose", country, rng)] for country in all_countries
    }
    yield question_type("whose", {"capital": "capital"}, _wordings(ask, "whose"), capital_owners)
    is_capital = {
        f"{country.name}|{country.capital}": [
            f"Yes, {country.capital} is the capital of {country.name}."
        ]
        for country in all_countries
    }
    is_capital |= {
        f"{country.name}|*": [
            geography.answer("capital", country, rng).replace("The capital", "No, the capital", 1)
        ]
        for country in all_countries
    }
    yield question_type(
        "is capital",
        {"country": "country", "capital": "capital"},
        _wordings(ask, "is capital"),
        is_capital,
    )
    continent_replies: Says = {}
    for country in all_countries:
        continents = country.continent.split(" and ")
        continent_replies |= {
            f"{country.name}|{continent}": [f"Yes, {country.name} is in {country.continent}."]
            for continent in continents
        }
        continent_replies[f"{country.name}|*"] = [f"No, {country.name} is in {country.continent}."]
    slots = {"country": "country", "continent": "continent"}
    yield question_type("is continent", slots, _wordings(ask, "is continent"), continent_replies)
    border = {
        f"{country.name}|{name}": [f"Yes, {country.name} borders {name}."]
        for country in all_countries
        for name in country.neighbours
    }
    border |= {
        f"{country.name}|*": [f"No, {geography.answer('neighbours', country, rng)}"]
        for country in all_countries
    }
    yield question_type(
        "borders", {"country": "country", "other": "country"}, _wordings(ask, "borders"), border
    )
    inside = {
        continent: [
            f"{capital(country.name)} is a country in {continent}."
            for country in all_countries
            if continent in country.continent.split(" and ")
        ]
        for continent in geography.CONTINENTS
    }
    yield question_type(
        "in continent", {"continent": "continent"}, _wordings(ask, "in continent"), inside
    )
    yield question_type("same", {"country": "same"}, _wordings(ask, "same"), {})
    for name in ("its capital", "its continent", "its neighbours"):
        yield question_type(name, {}, _wordings(ask, name), {})
    unknown = table("unknown")
    wordings = [*unknown["about_countries"], *table("more/unknown")["about_countries"]]
    yield question_type(
        "about countries", {"country": "country"}, wordings, {"*": [unknown["say_country"]]}
    )
    now = [*unknown["about_now"], *table("more/unknown")["about_now"]]
    yield question_type("about now", {}, now, {"": [unknown["say_now"]]})


def _sums() -> Iterator[dict[str, Any]]:
    for name in ("+", "-", "x", "/", "bigger", "smaller"):
        yield question_type(name, {"x": NUMBER, "y": NUMBER}, _wordings(arithmetic.ASK, name), {})
    says: dict[str, Says] = {
        "next": {str(x): [f"{x + 1} comes after {x}."] for x in range(100)},
        "before": {str(x): [f"{x - 1} comes before {x}."] for x in range(1, 100)},
        "double": {str(x): [f"Twice {x} is {2 * x}."] for x in range(100)},
        "half": {str(x): [f"Half of {x} is {x // 2}."] for x in range(0, 100, 2)},
        "even": {str(x): [f"{x} is {'odd' if x % 2 else 'even'}."] for x in range(100)},
    }
    for name, entries in says.items():
        yield question_type(
            f"{name} number", {"x": NUMBER}, _wordings(arithmetic.ASK, name), entries
        )


def _calendar() -> Iterator[dict[str, Any]]:
    days = calendar.DAYS
    months = calendar.MONTHS
    ask = calendar.ASK
    for name, step in (("after", 1), ("before", -1)):
        says = {
            x: [f"{names[(index + step) % len(names)]} comes {name} {x}."]
            for names in (days, months)
            for index, x in enumerate(names)
        }
        yield question_type(
            name, {"x": "day or month"}, _wordings(ask, name), says, is_ordered=True
        )
    for name in ("tomorrow", "yesterday", "weekend"):
        says = {x: [calendar.answer(name, 2, index, 0, 0)] for index, x in enumerate(days)}
        yield question_type(
            name, {"x": "day"}, _wordings(ask, name), says, is_ordered=name != "weekend"
        )
    for name in ("number", "length", "season"):
        says = {x: [calendar.answer(name, 2, 0, index, 0)] for index, x in enumerate(months)}
        yield question_type(name, {"x": "month"}, _wordings(ask, name), says)
    for name in ("steps after", "steps before"):
        says = {
            f"{n}|{x}": [calendar.answer(name, n, index, 0, 0)]
            for n in range(2, 6)
            for index, x in enumerate(days)
        }
        yield question_type(name, {"n": NUMBER, "x": "day"}, _wordings(ask, name), says)
    for name, count in (("place", 12), ("day place", 7)):
        of_p = {str(p + 1): [calendar.answer(name, 2, 0, 0, p)] for p in range(count)}
        yield question_type(name, {"p": "place"}, _wordings(ask, name), of_p)
        yield question_type(f"{name} by number", {"c": NUMBER}, _wordings(ask, name), of_p)
    for name in ("days", "months", "seasons", "weekend days", "shortest"):
        yield question_type(
            name, {}, _wordings(ask, name), {"": [calendar.answer(name, 2, 0, 0, 0)]}
        )


def _tables() -> Iterator[dict[str, Any]]:
    few_wordings, many_wordings = facts.OPPOSITE
    says = {
        word: [f"The opposite of {word} is {other}."] for word, other in facts.opposites().items()
    }
    yield question_type("opposite", {"a": "opposite"}, [*few_wordings, *many_wordings], says)
    for relation in table("relations")["relation"]:
        says = {a: [capital(fill(relation["say"], {"a": a, "b": b}))] for a, b in relation["rows"]}
        yield question_type(
            relation["name"],
            {"a": relation["name"]},
            [*relation["ask"], *relation.get("more", ())],
            says,
        )


def _lists() -> Iterator[dict[str, Any]]:
    for name in facts.LISTS:
        for index, entry in enumerate(table(name)["qa"]):
            say = entry["say"] if isinstance(entry["say"], list) else [entry["say"]]
            yield question_type(
                f"{name} {index}", {}, [*entry["ask"], *entry.get("more", ())], {"": say}
            )


def _memory() -> Iterator[dict[str, Any]]:
    for name, texts in memory.KINDS.items():
        wordings = [*texts["ask"], *memory.MORE["kinds"][name]["ask"]]
        yield question_type(
            f"told {name}", {"k": "family"} if name == "relation" else {}, wordings, {}
        )


def _replies() -> dict[str, str]:
    return {
        f"{reply_type} {name}": texts[reply_type]
        for name, texts in memory.KINDS.items()
        for reply_type in ("reply", "answer", "not told")
    }


def _tells() -> list[tuple[str, str, str]]:
    """Return the text before and after the value in each wording that tells a fact, and the fact's
    name."""
    family = [*table("words")["family"], *table("words")["pets"]]
    spans = []
    for name, texts in memory.KINDS.items():
        for wording in (*texts["tell"], *memory.MORE["kinds"][name]["tell"]):
            for sentence in sentences(wording.replace("{an v}", "[a|an] {v}")):
                is_plain = name == "name" and not re.search(
                    r"\b(?:name|call(?:ed)?)\b", sentence, re.IGNORECASE
                )
                for relative in family if "{k}" in sentence else [""]:
                    begin, end = (
                        normalize(sentence.replace("{k}", relative)).rstrip(".! ").split("{v}")
                    )
                    spans.append((begin, end, f"{'plain-' * is_plain}{name} {relative}".rstrip()))
    return list(dict.fromkeys(spans))


def _told_values() -> dict[str, str]:
    """Return an expression for the values of each fact; unlisted food, jobs and hobbies are not
    restricted."""
    words = table("words")
    lists = {"food": "foods", "job": "jobs", "hobby": "hobbies", "plain-name": "given_names"}
    return {
        "age": r"\d{1,3}",
        "number": r"\d{1,9}",
        "colour": r"[^\W\d_]+",
        "city": r"[A-Z][\w'-]+(?: [A-Z][\w'-]+)?",
        "secret": r"[\w'-]+(?: [\w'-]+){0,2}",
        "relation": r"[^\W\d_][\w'-]*",
        "name": r"[^\W\d_][\w'-]*",
    } | {name: "(?i:" + "|".join(words[entries]) + ")" for name, entries in lists.items()}


def _values() -> dict[str, dict[str, str]]:
    """Return tables that map the words of a name to the name in answers."""
    every = list(countries().values())
    names_by_list = {
        "country": [
            (called, entry.name) for entry in every for called in (entry.name, *entry.other_names)
        ],
        "capital": [(entry.capital, entry.capital) for entry in every],
        "continent": [(name, name) for name in geography.CONTINENTS],
        "day": [(name, name) for name in calendar.DAYS],
        "month": [(name, name) for name in calendar.MONTHS],
        "day or month": [(name, name) for name in (*calendar.DAYS, *calendar.MONTHS)],
        "place": [
            (word, str(p + 1))
            for names in (calendar.PLACES, calendar.ORDINALS)
            for p, word in enumerate(names)
        ],
        "opposite": [(word, word) for word in facts.opposites()],
        "family": [(word, word) for word in (*table("words")["family"], *table("words")["pets"])],
    }
    for entry in table("relations")["relation"]:
        names_by_list[entry["name"]] = [
            (form, a) for a, _ in entry["rows"] for form in (a, f"{a}s")
        ]
    return {
        name: {" ".join(important_words(called)): value for called, value in entries}
        for name, entries in names_by_list.items()
    }


if __name__ == "__main__":
    main()
