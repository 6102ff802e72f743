"""Capitals, continents and neighbours."""

from __future__ import annotations

from random import Random

from starter.grammar import capital as capitalised
from starter.grammar import expand
from starter.text.tables import Country, Turn, countries

ASK = {
    "capital": [
        "What is the capital of {country}?",
        "What's the capital of {country}?",
        "What is the capital city of {country}?",
        "[Tell me|Name|Give me|Say] the capital [city |]of {country}.",
        "Which city is the capital of {country}?",
        "Capital of {country}?",
        "{country}'s capital?",
        "What is {country}'s capital[ city|]?",
        "[Do you know|Can you tell me|Can you name] the capital of {country}?",
        "What is the name of the capital of {country}?",
        "[What|Which] is the main city of {country}, the capital?",
        "The capital of {country} is [what|which city]?",
        "What city is the capital of {country}?",
        "[I need|I want to know|I am looking for] the capital of {country}.",
        "Which capital does {country} have?",
        "What capital has {country}?",
        "{country}: capital?",
        "Where is the government of {country}? I mean the capital.",
        "capital {country}",
        "How is the capital of {country} called?",
        "[Is there a|Has {country} a] capital[ of {country}|], and which?",
        "For {country}, what is the capital?",
    ],
    "whose": [
        "{capital} is the capital of which country?",
        "Which country has the capital {capital}?",
        "{capital} is the capital of what?",
        "Of which country is {capital} the capital?",
        "[What|Which] country's capital is {capital}?",
        "What country has {capital} as its capital?",
        "{capital} is [which country's|whose] capital?",
        "Where is {capital}?",
        "In which country is {capital}?",
        "What is {capital}?",
        "In what country do I find {capital}?",
        "[Tell me|Name] the country whose capital is {capital}.",
        "Which country does {capital} belong to?",
        "[Where do I find|Where can I find] {capital}?",
    ],
    "is capital": [
        "Is {capital} the capital of {country}?",
        "{capital} is the capital of {country}, right?",
        "Is the capital of {country} {capital}?",
        "Is it true that {capital} is the capital of {country}?",
        "Is {capital} {country}'s capital?",
        "I think the capital of {country} is {capital}.",
    ],
    "continent": [
        "[Which|What] continent is {country} [in|on]?",
        "[On|In] which continent is {country}?",
        "Where is {country}?",
        "Where in the world is {country}?",
        "What is the continent of {country}?",
        "[Which|What] continent does {country} belong to?",
        "To which continent does {country} belong?",
        "[Tell me|Name|Say] the continent of {country}.",
        "{country} is [on|in] [which|what] continent?",
        "On what continent [lies|is] {country}?",
        "[Can you tell me|Do you know] the continent of {country}?",
        "{country}: continent?",
        "Where is {country} located?",
        "Where [does {country} lie|lies {country}]?",
        "Continent of {country}?",
        "{country} is part of which continent?",
        "In what part of the world is {country}?",
        "[On|In] what continent would I find {country}?",
    ],
    "is continent": [
        "Is {country} in {continent}?",
        "Is {country} a country in {continent}?",
        "Does {country} belong to {continent}?",
        "{country} is in {continent}, right?",
        "Is {country} part of {continent}?",
        "Does {country} lie in {continent}?",
    ],
    "neighbours": [
        "[Which|What] countries border {country}?",
        "What are the neighbours of {country}?",
        "Which countries are neighbours of {country}?",
        "What countries does {country} border?",
        "[Name|List|Tell me] the neighbours of {country}.",
        "[Which|What] neighbours does {country} have?",
        "What are {country}'s neighbours?",
        "[Which|What] are the neighboring countries of {country}?",
        "Who are the neighbours of {country}?",
        "[With which|With what] countries does {country} share a border?",
        "{country}: neighbours?",
        "Neighbours of {country}?",
        "[Which|What] countries are next to {country}?",
        "[Name|List] [all |the |]countries that border {country}.",
        "What lies around {country}?",
        "[Which|What] countries surround {country}?",
        "What countries touch {country}?",
        "[Can you list|Do you know] the neighbours of {country}?",
        "Which neighbors has {country}?",
        "What does {country} border[ on|]?",
        "Tell me which countries border {country}.",
        "The neighbours of {country}, please.",
    ],
    "borders": [
        "Does {country} border {other}?",
        "Is {country} next to {other}?",
        "Is {other} a neighbour of {country}?",
        "Are {country} and {other} neighbours?",
        "Do {country} and {other} share a border?",
        "Does {country} have a border with {other}?",
        "Is there a border between {country} and {other}?",
        "{country} borders {other}, right?",
    ],
    "how many": [
        "How many neighbours does {country} have?",
        "How many countries border {country}?",
        "How many neighbours has {country}?",
        "[Tell me|What is] the number of neighbours of {country}[.|?]",
        "With how many countries does {country} share a border?",
        "How many countries does {country} border?",
    ],
    "a neighbour": [
        "Name [a|one] neighbour of {country}.",
        "Name [a|one] country that borders {country}.",
        "Give me [a|one] neighbour of {country}.",
        "Which country, for example, borders {country}?",
    ],
    "about": [
        "What is {country}?",
        "Tell me about {country}.",
        "What do you know about {country}?",
        "Tell me something about {country}.",
        "Is {country} a country?",
        "Do you know {country}?",
        "Describe {country}.",
        "What can you tell me about {country}?",
        "{country}?",
        "{country}",
    ],
    "both": [
        "What are the capital and the continent of {country}?",
        "Where is {country}, and what is its capital?",
        "Name the capital and the continent of {country}.",
        "On which continent is {country}, and what is its capital?",
    ],
    "in continent": [
        "Name a country in {continent}.",
        "Name a country of {continent}.",
        "Give me a country in {continent}.",
        "Do you know a country in {continent}?",
        "Tell me a country on the continent {continent}.",
    ],
    "some in continent": [
        "Name three countries in {continent}.",
        "Name some countries in {continent}.",
        "Which countries are in {continent}?",
        "List countries in {continent}.",
        "Give me some countries of {continent}.",
    ],
    "same": [
        "[And|What about|How about] {country}?",
        "And {country}?",
        "And [of|for] {country}?",
        "[And now|Now|The same for] {country}.",
        "Same question for {country}.",
        "{country}?",
    ],
    "its capital": [
        "[And|] what is its capital?",
        "And its capital?",
        "What is the capital there?",
        "And the capital?",
        "[Which|What] capital does it have?",
        "Its capital?",
    ],
    "its continent": [
        "[And|] which continent is it [in|on]?",
        "Where is it?",
        "And its continent?",
        "On which continent is that?",
        "And the continent?",
        "Where is that?",
        "[And|] where is that country?",
    ],
    "its neighbours": [
        "[And|] what are its neighbours?",
        "And its neighbours?",
        "Which countries border it?",
        "And the neighbours?",
        "[And|] what countries are next to it?",
        "Who are its neighbours?",
        "Its neighbours?",
    ],
}
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
_CONTINENTS = ("Africa", "Asia", "Europe", "North America", "South America", "Oceania")
_ALL = list(countries().values())


def turns(rng: Random) -> list[Turn]:
    """Ask about one country, or about several in a row."""
    kind = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    country = rng.choice(_ALL)
    conversation = [_turn(kind, country, rng)]
    while rng.random() < 0.35:
        if kind in _REPEATABLE and rng.random() < 0.5:
            country = rng.choice(_ALL)
            conversation.append((_ask("same", country, rng), _answer(kind, country, rng)))
        elif kind in (*_REPEATABLE, "about", "a neighbour", "its"):
            asked = rng.choice(("capital", "continent", "neighbours"))
            conversation.append((_ask(f"its {asked}", country, rng), _answer(asked, country, rng)))
        else:
            break
    return conversation


def _turn(kind: str, country: Country, rng: Random) -> Turn:
    if kind == "is capital":
        return _is_capital(country, rng)
    if kind == "is continent":
        return _is_continent(country, rng)
    if kind == "borders":
        return _borders(country, rng)
    if kind in ("in continent", "some in continent"):
        return _in_continent(kind, rng)
    return _ask(kind, country, rng), _answer(kind, country, rng)


def _ask(kind: str, country: Country, rng: Random, **values: str) -> str:
    if "capital" not in values:
        values["capital"] = country.capital
    return capitalised(expand(rng.choice(ASK[kind]), rng, {"country": _called(country, rng), **values}))


def _called(country: Country, rng: Random) -> str:
    """The name as a user may say it."""
    if country.other_names and rng.random() < 0.35:
        return rng.choice(country.other_names)
    return country.bare if rng.random() < 0.25 else country.name


def enumerate_names(names: list[str] | tuple[str, ...]) -> str:
    """Write "A, B and C"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _answer(kind: str, country: Country, rng: Random) -> str:
    name, neighbours = country.name, country.neighbours
    if kind == "capital":
        return f"The capital of {name} is {_sentence_end(country.capital)} {country.note}".strip()
    if kind == "whose":
        return f"{country.capital} is the capital of {name}."
    if kind == "continent":
        return f"{capitalised(name)} is in {country.continent}."
    if kind == "about":
        return (
            f"{capitalised(name)} is a country in {country.continent}. Its capital is {_sentence_end(country.capital)}"
        )
    if kind == "both":
        return f"{capitalised(name)} is in {country.continent}. Its capital is {_sentence_end(country.capital)}"
    if not neighbours:
        return f"{capitalised(name)} has no land borders."
    if kind == "how many":
        noun = "neighbour" if len(neighbours) == 1 else "neighbours"
        return f"{capitalised(name)} has {len(neighbours)} {noun}: {enumerate_names(neighbours)}."
    if kind == "a neighbour":
        return f"{capitalised(name)} borders {rng.choice(neighbours)}."
    return f"{capitalised(name)} borders {enumerate_names(neighbours)}."


def _sentence_end(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _is_capital(country: Country, rng: Random) -> Turn:
    is_true = rng.random() < 0.5
    named = country if is_true else rng.choice(_ALL)
    question = _ask("is capital", country, rng, capital=named.capital)
    if named.capital == country.capital:
        return question, f"Yes, {country.capital} is the capital of {country.name}."
    return question, f"No, the capital of {country.name} is {_sentence_end(country.capital)}"


def _is_continent(country: Country, rng: Random) -> Turn:
    is_true = rng.random() < 0.5
    continent = rng.choice(country.continent.split(" and ")) if is_true else rng.choice(_CONTINENTS)
    question = _ask("is continent", country, rng, continent=continent)
    word = "Yes" if continent in country.continent.split(" and ") else "No"
    return question, f"{word}, {country.name} is in {country.continent}."


def _borders(country: Country, rng: Random) -> Turn:
    world = countries()
    beyond = [n for name in country.neighbours if name in world for n in world[name].neighbours if n != country.name]
    nearby = [c.name for c in _ALL if c.continent == country.continent and c is not country]
    anywhere = [c.name for c in _ALL if c is not country]
    other = rng.choice(rng.choice([pool for pool in (list(country.neighbours), beyond, nearby, anywhere) if pool]))
    question = _ask("borders", country, rng, other=other)
    if other in country.neighbours:
        return question, f"Yes, {country.name} borders {other}."
    return question, f"No, {country.name} does not border {other}."


def _in_continent(kind: str, rng: Random) -> Turn:
    continent = rng.choice(_CONTINENTS)
    there = [country.name for country in _ALL if continent in country.continent.split(" and ")]
    chosen = rng.sample(there, 1 if kind == "in continent" else 3)
    verb = "is a country" if len(chosen) == 1 else "are countries"
    return _ask(
        kind, _ALL[0], rng, continent=continent
    ), f"{capitalised(enumerate_names(chosen))} {verb} in {continent}."


def wordings() -> list[str]:
    """Return all wordings of the user."""
    return [template for templates in ASK.values() for template in templates]
