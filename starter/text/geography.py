"""Capitals, continents and neighbours."""

from __future__ import annotations

from starter.grammar import capital as capitalised
from starter.grammar import enumerated, expand
from starter.text.tables import Country, Turn, Writer, countries, wordings_of

ASK = wordings_of("geography")
_WEIGHTS = {
    "capital": 30,
    "whose": 13,
    "is capital": 4,
    "continent": 15,
    "is continent": 4,
    "neighbours": 24,
    "borders": 8,
    "how many": 4,
    "a neighbour": 2,
    "about": 5,
    "both": 2,
    "in continent": 2,
    "some in continent": 2,
}
_REPEATABLE = ("capital", "continent", "neighbours", "how many")
CONTINENTS = ("Africa", "Asia", "Europe", "North America", "South America", "Oceania")
_ALL = list(countries().values())


def turns(rng: Writer) -> list[Turn]:
    """Ask about one country, or about several in a row."""
    question_type = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    country = rng.choice(_ALL)
    conversation = [_turn(question_type, country, rng)]
    while rng.random() < 0.35:
        if question_type in _REPEATABLE and rng.random() < 0.5:
            country = rng.choice(_ALL)
            conversation.append((_ask("same", country, rng), answer(question_type, country, rng)))
        elif question_type in (*_REPEATABLE, "about", "a neighbour", "its"):
            next_type = rng.choice(("capital", "continent", "neighbours"))
            conversation.append(
                (_ask(f"its {next_type}", country, rng), answer(next_type, country, rng))
            )
            question_type = next_type
        else:
            break
    return conversation


def _turn(question_type: str, country: Country, rng: Writer) -> Turn:
    if question_type == "is capital":
        return _is_capital(country, rng)
    if question_type == "is continent":
        return _is_continent(country, rng)
    if question_type == "borders":
        return _borders(country, rng)
    if question_type in ("in continent", "some in continent"):
        return _in_continent(question_type, rng)
    return _ask(question_type, country, rng), answer(question_type, country, rng)


def _ask(question_type: str, country: Country, rng: Writer, **values: str) -> str:
    if "capital" not in values:
        values["capital"] = country.capital
    return capitalised(
        expand(rng.wording(*ASK[question_type]), rng, {"country": _called(country, rng), **values})
    )


def _called(country: Country, rng: Writer) -> str:
    """The name as a user may say it."""
    if country.other_names and rng.random() < 0.35:
        return rng.choice(country.other_names)
    return country.bare if rng.random() < 0.25 else country.name


def answer(question_type: str, country: Country, rng: Writer) -> str:
    """Return the answer to a kind of question about a country."""
    name, neighbours = country.name, country.neighbours
    if question_type == "capital":
        return f"The capital of {name} is {_sentence_end(country.capital)} {country.note}".strip()
    if question_type == "whose":
        return f"{country.capital} is the capital of {name}."
    if question_type == "continent":
        return f"{capitalised(name)} is in {country.continent}."
    if question_type == "about":
        capital = _sentence_end(country.capital)
        return f"{capitalised(name)} is a country in {country.continent}. Its capital is {capital}"
    if question_type == "both":
        return (
            f"{capitalised(name)} is in {country.continent}. Its capital is "
            f"{_sentence_end(country.capital)}"
        )
    if not neighbours:
        return f"{capitalised(name)} has no land borders."
    if question_type == "how many":
        noun = "neighbour" if len(neighbours) == 1 else "neighbours"
        return f"{capitalised(name)} has {len(neighbours)} {noun}: {enumerated(neighbours)}."
    if question_type == "a neighbour":
        return f"{capitalised(name)} borders {rng.choice(neighbours)}."
    return f"{capitalised(name)} borders {enumerated(neighbours)}."


def _sentence_end(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _is_capital(country: Country, rng: Writer) -> Turn:
    is_true = rng.random() < 0.5
    named_country = country if is_true else rng.choice(_ALL)
    question = _ask("is capital", country, rng, capital=named_country.capital)
    if named_country.capital == country.capital:
        return question, f"Yes, {country.capital} is the capital of {country.name}."
    return question, f"No, the capital of {country.name} is {_sentence_end(country.capital)}"


def _is_continent(country: Country, rng: Writer) -> Turn:
    is_true = rng.random() < 0.5
    continent = rng.choice(country.continent.split(" and ")) if is_true else rng.choice(CONTINENTS)
    question = _ask("is continent", country, rng, continent=continent)
    word = "Yes" if continent in country.continent.split(" and ") else "No"
    return question, f"{word}, {country.name} is in {country.continent}."


def _borders(country: Country, rng: Writer) -> Turn:
    world = countries()
    beyond = [
        n
        for name in country.neighbours
        if name in world
        for n in world[name].neighbours
        if n != country.name
    ]
    nearby = [c.name for c in _ALL if c.continent == country.continent and c is not country]
    anywhere = [c.name for c in _ALL if c is not country]
    second_country = rng.choice(
        rng.choice([pool for pool in (list(country.neighbours), beyond, nearby, anywhere) if pool])
    )
    question = _ask("borders", country, rng, other=second_country)
    if second_country in country.neighbours:
        return question, f"Yes, {country.name} borders {second_country}."
    return question, f"No, {country.name} does not border {second_country}."


def _in_continent(question_type: str, rng: Writer) -> Turn:
    continent = rng.choice(CONTINENTS)
    country_names = [
        country.name for country in _ALL if continent in country.continent.split(" and ")
    ]
    chosen = rng.sample(country_names, 1 if question_type == "in continent" else 3)
    verb = "is a country" if len(chosen) == 1 else "are countries"
    return _ask(
        question_type, _ALL[0], rng, continent=continent
    ), f"{capitalised(enumerated(chosen))} {verb} in {continent}."


def wordings() -> list[str]:
    """Return all wordings of the user."""
    return [
        template
        for few_wordings, many_wordings in ASK.values()
        for template in few_wordings + many_wordings
    ]
