"""What the user says of themselves, and what they ask of it later in the same conversation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from starter.grammar import enumerated, expand
from starter.text import invented
from starter.text.arithmetic import spelled
from starter.text.tables import Turn, Writer, table

KINDS = table("memory")["kinds"]
PETS = table("memory")["pets"]
OTHER = table("memory")["other"]
MORE = table("more/memory")


@dataclass
class Person:
    """What one user has told so far.

    Attributes:
        told: kind, with the relative's word behind it for names of others, to value.
        pets: (number, animal), or None while nothing was said of them.
    """

    told: dict[str, str] = field(default_factory=dict)
    pets: list[tuple[int, str]] | None = None


def tell(person: Person, rng: Writer) -> list[Turn]:
    """Let the user say one or two things of themselves."""
    if rng.random() < 0.2:
        return [_tell_pets(person, rng)]
    said = [_statement(person, rng)]
    if rng.random() < 0.15 and len(said[0][0]) < 60:
        other = _statement(person, rng)
        return [(f"{said[0][0]} {other[0]}", rng.choice((other[1], said[0][1])))]
    return said


def _statement(person: Person, rng: Writer) -> Turn:
    kind = rng.choices(list(KINDS), (30, 8, 8, 8, 8, 8, 6, 12, 7, 7))[0]
    texts, (key, values) = KINDS[kind], _new_value(kind, rng)
    is_correction = key in person.told
    person.told[key] = values["v"]
    opening = _other("correction", rng) if is_correction and rng.random() < 0.7 else ""
    question = expand(rng.wording(texts["tell"], MORE["kinds"][kind]["tell"]), rng, values)
    return opening + question[:1].upper() + question[1:], _filled(str(texts["reply"]), values)


def _filled(text: str, values: dict[str, str]) -> str:
    filled = expand(text, Writer(0), values)
    return filled[:1].upper() + filled[1:]


def _new_value(kind: str, rng: Writer) -> tuple[str, dict[str, str]]:
    words = table("words")
    if kind == "relation":
        k = rng.choice([*words["family"], *words["pets"]])
        return f"relation {k}", {"k": k, "v": invented.name(rng)}
    values: dict[str, Callable[[], str]] = {
        "name": lambda: invented.name(rng),
        "age": lambda: str(rng.randrange(5, 100)),
        "colour": lambda: rng.choice(words["colours"]),
        "food": lambda: rng.choice(words["foods"]),
        "city": lambda: (
            rng.choice(words["cities"]) if rng.random() < 0.6 else invented.word(rng).capitalize()
        ),
        "job": lambda: rng.choice(words["jobs"]),
        "hobby": lambda: rng.choice(words["hobbies"]),
        "secret": lambda: (
            invented.word(rng)
            if rng.random() < 0.6
            else rng.choice(words["foods"] + words["colours"] + words["without_opposite"])
        ),
        "number": lambda: str(rng.randrange(1, 1000)),
    }
    return kind, {"v": values[kind](), "k": ""}


def ask(person: Person, rng: Writer) -> list[Turn]:
    """Let the user ask for what they told, and sometimes for what they did not tell."""
    if (person.pets and rng.random() < 0.4) or (person.pets is None and rng.random() < 0.04):
        return [_ask_pets(person, rng)]
    known = list(person.told)
    key = rng.choice(known) if known and rng.random() < 0.8 else rng.choice([*KINDS, "relation"])
    kind, _, k = key.partition(" ")
    k = k or (rng.choice(table("words")["family"]) if kind == "relation" else "")
    key = f"relation {k}" if kind == "relation" else kind
    texts = KINDS[kind]
    values = {"k": k, "v": person.told.get(key, "")}
    answer = texts["answer"] if key in person.told else texts["not told"]
    return [
        (
            expand(rng.wording(texts["ask"], MORE["kinds"][kind]["ask"]), rng, values),
            _filled(str(answer), values),
        )
    ]


def _pets_text(pets: list[tuple[int, str]], rng: Writer, as_digits: bool = False) -> str:
    parts = []
    for number, animal in pets:
        many = animal if number == 1 or animal == "fish" else f"{animal}s"
        shown = str(number) if as_digits else ("a" if number == 1 else spelled(number))
        parts.append(f"{shown} {many}")
    return enumerated(parts)


def _tell_pets(person: Person, rng: Writer) -> Turn:
    animals = rng.sample(table("words")["pets"], rng.choices((1, 2, 3), (25, 55, 20))[0])
    person.pets = [
        (rng.choices((1, 2, 3, 4, 5, 6), (40, 25, 15, 10, 5, 5))[0], animal) for animal in animals
    ]
    values = {"v": _pets_text(person.pets, rng, rng.random() < 0.15)}
    return expand(_of_pets(rng, "tell"), rng, values), "How nice!"


def _ask_pets(person: Person, rng: Writer) -> Turn:
    if not person.pets:
        return expand(_of_pets(rng, "how many", "which"), rng), PETS["not told"]
    listed = _pets_text(person.pets, rng)
    how = rng.random()
    if how < 0.7:
        total = sum(number for number, _ in person.pets)
        sums = " + ".join(str(number) for number, _ in person.pets)
        shown = f"{listed}: {sums} = {total}" if len(person.pets) > 1 else listed
        question = expand(_of_pets(rng, "how many"), rng)
        return question, f"You have {shown}. That is {total} pet{'s' if total > 1 else ''}."
    if how < 0.85:
        return expand(_of_pets(rng, "which"), rng), f"You have {listed}."
    number, animal = rng.choice(person.pets)
    many = animal if animal == "fish" else f"{animal}s"
    return expand(
        _of_pets(rng, "how many of"), rng, {"k": many}
    ), f"You have {_pets_text([(number, animal)], rng)}."


def echo(rng: Writer) -> list[Turn]:
    """Ask the model to say some words after the user."""
    text = " ".join(
        invented.word(rng) if rng.random() < 0.5 else rng.choice(table("words")["foods"])
        for _ in range(rng.choice((1, 1, 2, 3)))
    )
    return [(expand(_other("echo", rng), rng, {"v": text}), f"{text[:1].upper()}{text[1:]}.")]


def last_message(turns: list[Turn], rng: Writer) -> list[Turn]:
    """Ask for the message before."""
    return (
        [(_other("last message", rng), f'You said: "{turns[-1][0]}"')]
        if turns and len(turns[-1][0]) < 80
        else []
    )


def _other(kind: str, rng: Writer) -> str:
    return rng.wording(OTHER[kind], MORE["other"][kind])


def _of_pets(rng: Writer, *kinds: str) -> str:
    few, more = ([text for kind in kinds for text in texts[kind]] for texts in (PETS, MORE["pets"]))
    return rng.wording(few, more)


def wordings() -> list[str]:
    """Return all wordings of the user."""
    tables = (table("memory"), MORE)
    told = [
        text
        for one in tables
        for texts in one["kinds"].values()
        for key in ("tell", "ask")
        for text in texts[key]
    ]
    pets = [
        text
        for one in tables
        for key in ("tell", "how many", "which", "how many of")
        for text in one["pets"][key]
    ]
    return (
        told
        + pets
        + [text for one in tables for key in ("echo", "last message") for text in one["other"][key]]
    )
