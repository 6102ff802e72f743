"""Facts that users tell about themselves, and questions about them in the same conversation."""

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
    """Facts that a user has told so far.

    Attributes:
        told: values by type of fact; for names of relatives, "relation" and the relative.
        pets: (number, animal) pairs; None if the user has not told about pets.
    """

    told: dict[str, str] = field(default_factory=dict)
    pets: list[tuple[int, str]] | None = None


def tell(person: Person, rng: Writer) -> list[Turn]:
    """Write a turn in which the user tells one or two facts."""
    if rng.random() < 0.2:
        return [_tell_pets(person, rng)]
    statements = [_statement(person, rng)]
    if rng.random() < 0.15 and len(statements[0][0]) < 60:
        second_statement = _statement(person, rng)
        return [
            (
                f"{statements[0][0]} {second_statement[0]}",
                rng.choice((second_statement[1], statements[0][1])),
            )
        ]
    return statements


def _statement(person: Person, rng: Writer) -> Turn:
    fact_type = rng.choices(list(KINDS), (30, 8, 8, 8, 8, 8, 6, 12, 7, 7))[0]
    texts, (key, values) = KINDS[fact_type], _new_value(fact_type, rng)
    is_correction = key in person.told
    person.told[key] = values["v"]
    opening = _other("correction", rng) if is_correction and rng.random() < 0.7 else ""
    question = expand(rng.wording(texts["tell"], MORE["kinds"][fact_type]["tell"]), rng, values)
    return opening + question[:1].upper() + question[1:], _filled(str(texts["reply"]), values)


def _filled(text: str, values: dict[str, str]) -> str:
    filled = expand(text, Writer(0), values)
    return filled[:1].upper() + filled[1:]


def _new_value(fact_type: str, rng: Writer) -> tuple[str, dict[str, str]]:
    words = table("words")
    if fact_type == "relation":
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
    return fact_type, {"v": values[fact_type](), "k": ""}


def ask(person: Person, rng: Writer) -> list[Turn]:
    """Write a question about a fact, sometimes one that the user did not tell."""
    if (person.pets and rng.random() < 0.4) or (person.pets is None and rng.random() < 0.04):
        return [_ask_pets(person, rng)]
    known_keys = list(person.told)
    key = (
        rng.choice(known_keys)
        if known_keys and rng.random() < 0.8
        else rng.choice([*KINDS, "relation"])
    )
    fact_type, _, k = key.partition(" ")
    k = k or (rng.choice(table("words")["family"]) if fact_type == "relation" else "")
    key = f"relation {k}" if fact_type == "relation" else fact_type
    texts = KINDS[fact_type]
    values = {"k": k, "v": person.told.get(key, "")}
    answer = texts["answer"] if key in person.told else texts["not told"]
    return [
        (
            expand(rng.wording(texts["ask"], MORE["kinds"][fact_type]["ask"]), rng, values),
            _filled(str(answer), values),
        )
    ]


def _pets_text(pets: list[tuple[int, str]], rng: Writer, as_digits: bool = False) -> str:
    pet_names = []
    for number, animal in pets:
        many = animal if number == 1 or animal == "fish" else f"{animal}s"
        pets_text = str(number) if as_digits else ("a" if number == 1 else spelled(number))
        pet_names.append(f"{pets_text} {many}")
    return enumerated(pet_names)


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
    draw = rng.random()
    if draw < 0.7:
        total = sum(number for number, _ in person.pets)
        sums = " + ".join(str(number) for number, _ in person.pets)
        pets_text = f"{listed}: {sums} = {total}" if len(person.pets) > 1 else listed
        question = expand(_of_pets(rng, "how many"), rng)
        return question, f"You have {pets_text}. That is {total} pet{'s' if total > 1 else ''}."
    if draw < 0.85:
        return expand(_of_pets(rng, "which"), rng), f"You have {listed}."
    number, animal = rng.choice(person.pets)
    many = animal if animal == "fish" else f"{animal}s"
    return expand(
        _of_pets(rng, "how many of"), rng, {"k": many}
    ), f"You have {_pets_text([(number, animal)], rng)}."


def echo(rng: Writer) -> list[Turn]:
    """Write a turn in which the model repeats some words."""
    text = " ".join(
        invented.word(rng) if rng.random() < 0.5 else rng.choice(table("words")["foods"])
        for _ in range(rng.choice((1, 1, 2, 3)))
    )
    return [(expand(_other("echo", rng), rng, {"v": text}), f"{text[:1].upper()}{text[1:]}.")]


def last_message(turns: list[Turn], rng: Writer) -> list[Turn]:
    """Write a question about the previous message."""
    return (
        [(_other("last message", rng), f'You said: "{turns[-1][0]}"')]
        if turns and len(turns[-1][0]) < 80
        else []
    )


def _other(fact_type: str, rng: Writer) -> str:
    return rng.wording(OTHER[fact_type], MORE["other"][fact_type])


def _of_pets(rng: Writer, *kinds: str) -> str:
    few_wordings, many_wordings = (
        [text for fact_type in kinds for text in texts[fact_type]] for texts in (PETS, MORE["pets"])
    )
    return rng.wording(few_wordings, many_wordings)


def wordings() -> list[str]:
    """Return all wordings of the user."""
    tables = (table("memory"), MORE)
    told = [
        text
        for facts_table in tables
        for texts in facts_table["kinds"].values()
        for key in ("tell", "ask")
        for text in texts[key]
    ]
    pets = [
        text
        for facts_table in tables
        for key in ("tell", "how many", "which", "how many of")
        for text in facts_table["pets"][key]
    ]
    return (
        told
        + pets
        + [
            text
            for facts_table in tables
            for key in ("echo", "last message")
            for text in facts_table["other"][key]
        ]
    )
