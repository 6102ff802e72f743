"""Write ``starter/fence.json``: ``python -m starter.make_fence``.

What the program holds the starter model to (``app/reply/starter_fence.py``): each question of the training
text as the words of its wordings, with the answers that training has for it. It follows from
``starter/facts`` alone; a test compares them.
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
"""Begins the words that stand for slots."""
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
    made = {
        **table("care"),
        "values": _values(),
        "replies": _replies(),
        "tells": _tells(),
        "told values": _told_values(),
        "kinds": kinds,
    }
    return json.dumps(made, ensure_ascii=False, indent=0) + "\n"


def kind(
    name: str, slots: dict[str, str], wordings: Iterable[str], says: Says, is_ordered: bool = False
) -> dict[str, Any]:
    """Return one kind of question: ``slots`` is the slot's name in the wordings to its table."""
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
    """Yield what a wording's alternatives make, slots left as they are."""
    parts = re.split(r"\[([^\[\]]*)\]", wording)
    choices = [part.split("|") if at % 2 else [part] for at, part in enumerate(parts)]
    for chosen in islice(product(*choices), _MOST_SENTENCES):
        yield "".join(chosen)


def without_doubtful(kinds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out rows of words that ask for two different things."""
    asked: dict[tuple[str, str], list[tuple[dict[str, Any], str]]] = {}
    for one in kinds:
        for ask in one["asks"] if one["ordered"] else ():
            asked.setdefault((str(sorted(one["slots"])), ask.partition(" <")[0]), []).append(
                (one, ask)
            )
    for of in asked.values():
        for one, ask in of if len(of) > 1 else ():
            one["asks"].remove(ask)
    return kinds


def _wordings(topic: dict[str, tuple[list[str], list[str]]], name: str) -> list[str]:
    few, more = topic[name]
    return [*few, *more]


def _geography() -> Iterator[dict[str, Any]]:
    ask, every, rng = geography.ASK, list(countries().values()), Writer(0)
    for name in ("capital", "continent", "neighbours", "how many", "about", "both"):
        says = {one.name: [geography.answer(name, one, rng)] for one in every}
        yield kind(name, {"country": "country"}, _wordings(ask, name), says)
    borders = {
        one.name: [f"{capital(one.name)} borders {other}." for other in one.neighbours]
        or [geography.answer("neighbours", one, rng)]
        for one in every
    }
    yield kind("a neighbour", {"country": "country"}, _wordings(ask, "a neighbour"), borders)
    whose = {one.capital: [geography.answer("whose", one, rng)] for one in every}
    yield kind("whose", {"capital": "capital"}, _wordings(ask, "whose"), whose)
    is_capital = {
        f"{one.name}|{one.capital}": [f"Yes, {one.capital} is the capital of {one.name}."]
        for one in every
    }
    is_capital |= {
        f"{one.name}|*": [
            geography.answer("capital", one, rng).replace("The capital", "No, the capital", 1)
        ]
        for one in every
    }
    yield kind(
        "is capital",
        {"country": "country", "capital": "capital"},
        _wordings(ask, "is capital"),
        is_capital,
    )
    there: Says = {}
    for one in every:
        parts = one.continent.split(" and ")
        there |= {
            f"{one.name}|{part}": [f"Yes, {one.name} is in {one.continent}."] for part in parts
        }
        there[f"{one.name}|*"] = [f"No, {one.name} is in {one.continent}."]
    slots = {"country": "country", "continent": "continent"}
    yield kind("is continent", slots, _wordings(ask, "is continent"), there)
    border = {
        f"{one.name}|{name}": [f"Yes, {one.name} borders {name}."]
        for one in every
        for name in one.neighbours
    }
    border |= {
        f"{one.name}|*": [f"No, {geography.answer('neighbours', one, rng)}"] for one in every
    }
    yield kind(
        "borders", {"country": "country", "other": "country"}, _wordings(ask, "borders"), border
    )
    inside = {
        part: [
            f"{capital(one.name)} is a country in {part}."
            for one in every
            if part in one.continent.split(" and ")
        ]
        for part in geography.CONTINENTS
    }
    yield kind("in continent", {"continent": "continent"}, _wordings(ask, "in continent"), inside)
    yield kind("same", {"country": "same"}, _wordings(ask, "same"), {})
    for name in ("its capital", "its continent", "its neighbours"):
        yield kind(name, {}, _wordings(ask, name), {})
    unknown = table("unknown")
    asked = [*unknown["about_countries"], *table("more/unknown")["about_countries"]]
    yield kind("about countries", {"country": "country"}, asked, {"*": [unknown["say_country"]]})
    now = [*unknown["about_now"], *table("more/unknown")["about_now"]]
    yield kind("about now", {}, now, {"": [unknown["say_now"]]})


def _sums() -> Iterator[dict[str, Any]]:
    for name in ("+", "-", "x", "/", "bigger", "smaller"):
        yield kind(name, {"x": NUMBER, "y": NUMBER}, _wordings(arithmetic.ASK, name), {})
    says: dict[str, Says] = {
        "next": {str(x): [f"{x + 1} comes after {x}."] for x in range(100)},
        "before": {str(x): [f"{x - 1} comes before {x}."] for x in range(1, 100)},
        "double": {str(x): [f"Twice {x} is {2 * x}."] for x in range(100)},
        "half": {str(x): [f"Half of {x} is {x // 2}."] for x in range(0, 100, 2)},
        "even": {str(x): [f"{x} is {'odd' if x % 2 else 'even'}."] for x in range(100)},
    }
    for name, of in says.items():
        yield kind(f"{name} number", {"x": NUMBER}, _wordings(arithmetic.ASK, name), of)


def _calendar() -> Iterator[dict[str, Any]]:
    days, months, ask = calendar.DAYS, calendar.MONTHS, calendar.ASK
    for name, step in (("after", 1), ("before", -1)):
        says = {
            x: [f"{names[(at + step) % len(names)]} comes {name} {x}."]
            for names in (days, months)
            for at, x in enumerate(names)
        }
        yield kind(name, {"x": "day or month"}, _wordings(ask, name), says, is_ordered=True)
    for name in ("tomorrow", "yesterday", "weekend"):
        says = {x: [calendar.answer(name, 2, at, 0, 0)] for at, x in enumerate(days)}
        yield kind(name, {"x": "day"}, _wordings(ask, name), says, is_ordered=name != "weekend")
    for name in ("number", "length", "season"):
        says = {x: [calendar.answer(name, 2, 0, at, 0)] for at, x in enumerate(months)}
        yield kind(name, {"x": "month"}, _wordings(ask, name), says)
    for name in ("steps after", "steps before"):
        says = {
            f"{n}|{x}": [calendar.answer(name, n, at, 0, 0)]
            for n in range(2, 6)
            for at, x in enumerate(days)
        }
        yield kind(name, {"n": NUMBER, "x": "day"}, _wordings(ask, name), says)
    for name, count in (("place", 12), ("day place", 7)):
        of_p = {str(p + 1): [calendar.answer(name, 2, 0, 0, p)] for p in range(count)}
        yield kind(name, {"p": "place"}, _wordings(ask, name), of_p)
        yield kind(f"{name} by number", {"c": NUMBER}, _wordings(ask, name), of_p)
    for name in ("days", "months", "seasons", "weekend days", "shortest"):
        yield kind(name, {}, _wordings(ask, name), {"": [calendar.answer(name, 2, 0, 0, 0)]})


def _tables() -> Iterator[dict[str, Any]]:
    few, more = facts.OPPOSITE
    says = {
        word: [f"The opposite of {word} is {other}."] for word, other in facts.opposites().items()
    }
    yield kind("opposite", {"a": "opposite"}, [*few, *more], says)
    for one in table("relations")["relation"]:
        says = {a: [capital(fill(one["say"], {"a": a, "b": b}))] for a, b in one["rows"]}
        yield kind(one["name"], {"a": one["name"]}, [*one["ask"], *one.get("more", ())], says)


def _lists() -> Iterator[dict[str, Any]]:
    for name in facts.LISTS:
        for at, entry in enumerate(table(name)["qa"]):
            say = entry["say"] if isinstance(entry["say"], list) else [entry["say"]]
            yield kind(f"{name} {at}", {}, [*entry["ask"], *entry.get("more", ())], {"": say})


def _memory() -> Iterator[dict[str, Any]]:
    for name, texts in memory.KINDS.items():
        wordings = [*texts["ask"], *memory.MORE["kinds"][name]["ask"]]
        yield kind(f"told {name}", {"k": "family"} if name == "relation" else {}, wordings, {})


def _replies() -> dict[str, str]:
    return {
        f"{what} {name}": texts[what]
        for name, texts in memory.KINDS.items()
        for what in ("reply", "answer", "not told")
    }


def _tells() -> list[tuple[str, str, str]]:
    """Return what stands before and after the value in each way to tell something, with what it
    tells."""
    family = [*table("words")["family"], *table("words")["pets"]]
    found = []
    for name, texts in memory.KINDS.items():
        for wording in (*texts["tell"], *memory.MORE["kinds"][name]["tell"]):
            for sentence in sentences(wording.replace("{an v}", "[a|an] {v}")):
                is_plain = name == "name" and not re.search(
                    r"\b(?:name|call(?:ed)?)\b", sentence, re.IGNORECASE
                )
                for whose in family if "{k}" in sentence else [""]:
                    begin, end = (
                        normalize(sentence.replace("{k}", whose)).rstrip(".! ").split("{v}")
                    )
                    found.append((begin, end, f"{'plain-' * is_plain}{name} {whose}".rstrip()))
    return list(dict.fromkeys(found))


def _told_values() -> dict[str, str]:
    """Return what may be told as an expression; other words for food, jobs and hobbies may be
    anything."""
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
    } | {name: "(?i:" + "|".join(words[of]) + ")" for name, of in lists.items()}


def _values() -> dict[str, dict[str, str]]:
    """Return the tables of names: the words of each, to the name that answers are kept by."""
    every = list(countries().values())
    named = {
        "country": [(called, one.name) for one in every for called in (one.name, *one.other_names)],
        "capital": [(one.capital, one.capital) for one in every],
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
    for one in table("relations")["relation"]:
        named[one["name"]] = [(form, a) for a, _ in one["rows"] for form in (a, f"{a}s")]
    return {
        name: {" ".join(important_words(called)): value for called, value in of}
        for name, of in named.items()
    }


if __name__ == "__main__":
    main()
