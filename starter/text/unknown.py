"""Questions beyond what the model knows, and the plain answer to them."""

from __future__ import annotations

from string import ascii_lowercase

from starter.grammar import capital, expand
from starter.text import invented
from starter.text.tables import Turn, Writer, countries, table

MORE = table("more/unknown")


def turns(rng: Writer) -> list[Turn]:
    """Write one or more questions that the model cannot answer."""
    conversation = [_turn(rng)]
    while rng.random() < 0.2:
        conversation.append(_turn(rng))
    return conversation


def _turn(rng: Writer) -> Turn:
    unknown = table("unknown")
    if rng.share_endless and rng.random() < rng.share_endless:
        return _endless(rng)
    if rng.share_more and rng.random() < 0.06:
        return _noise(rng), unknown["say_noise"]
    question_type = rng.choices(
        ("about_countries", "about_places", "about_now", "about_the_world", "tasks"),
        (20, 20, 12, 34, 14),
    )[0]
    template = rng.wording(unknown[question_type], MORE[question_type])
    place_name = (
        rng.choice(unknown["places"])
        if rng.random() < 0.4
        else invented.word(rng).capitalize() + rng.choice(("", "", "ia", "land", "stan"))
    )
    question = capital(
        expand(template, rng, lambda slot: place_name if slot == "place" else _slot(slot, rng))
    )
    answer = {
        "about_countries": unknown["say_country"],
        "about_places": unknown["say_place"].replace("{place}", place_name),
        "about_now": unknown["say_now"],
        "about_the_world": unknown["say_unknown"],
        "tasks": unknown["say_task"],
    }[question_type]
    return question, answer


def _noise(rng: Writer) -> str:
    """Return text as a cat on the keyboard would type it."""
    if rng.random() < 0.4:
        return rng.choice(MORE["noise"])
    signs = rng.choice(
        (ascii_lowercase, "asdfghjkl", "?!.", "-_=+*#", rng.choice(f"{ascii_lowercase}0.-"))
    )
    text = "".join(rng.choice(signs) for _ in range(rng.randrange(3, rng.choice((8, 20, 80)))))
    return (
        text
        if rng.random() < 0.8
        else " ".join(text[index : index + 5] for index in range(0, len(text), 5))
    )


def _endless(rng: Writer) -> Turn:
    """Return a repetitive message, or a request for an endless answer."""
    unknown = table("unknown")
    if rng.random() < 0.4:
        wish = expand(
            rng.choice(MORE["endless"]),
            rng,
            {"far": rng.choice(MORE["far"]), "word": invented.word(rng)},
        )
        return wish, unknown["say_endless"]
    cry = rng.choice(MORE["cries"])
    number = str(rng.randrange(rng.choice((10, 100))))
    again = rng.choice((number, rng.choice(ascii_lowercase), invented.word(rng), cry))
    # "1 1 1" is in the written test
    between = rng.choice((", ", "") if again == "1" else (" ", " ", "", ", "))
    return between.join([again] * rng.randrange(3, 30)), unknown["say_noise"]


def _slot(slot: str, rng: Writer) -> str:
    if slot == "country":
        country = rng.choice(list(countries().values()))
        return country.name if rng.random() < 0.8 else country.bare
    if slot in ("Name", "person") and rng.random() < 0.5:
        return f"{invented.name(rng)} {invented.word(rng).capitalize()}"
    if slot == "Name":
        return invented.name(rng)
    if slot == "word":
        return invented.word(rng)
    if slot == "Word":
        return invented.word(rng).capitalize()
    if slot.startswith("number"):
        digits = int(slot[-1])
        return str(
            rng.randrange(10 ** (digits - 1) if digits > 1 else 2, 10 ** (digits + (digits > 2)))
        )
    if slot == "title" and rng.random() < 0.4:
        return f"The {invented.word(rng).capitalize()} {invented.word(rng).capitalize()}"
    return str(rng.choice(table("unknown")["slots"][slot]))


def wordings() -> list[str]:
    """Return all wordings of the user."""
    unknown = table("unknown")
    return [
        ask
        for question_type in (
            "about_countries",
            "about_places",
            "about_now",
            "about_the_world",
            "tasks",
        )
        for ask in unknown[question_type] + MORE[question_type]
    ]
