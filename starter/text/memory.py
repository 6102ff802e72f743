"""What the user says of themselves, and what they ask of it later in the same conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from starter.grammar import expand
from starter.text import invented
from starter.text.arithmetic import spelled
from starter.text.tables import Turn, table

KINDS: dict[str, dict[str, list[str] | str]] = {
    "name": {
        "tell": [
            "My name is {v}.",
            "I am called {v}.",
            "I'm {v}.",
            "I am {v}.",
            "Hello, my name is {v}.",
            "Hi, I'm {v}.",
            "Hello, I am {v}.",
            "You can call me {v}.",
            "My friends call me {v}.",
            "Call me {v}.",
            "The name is {v}.",
            "{v} is my name.",
        ],
        "reply": "Nice to meet you, {v}!",
        "ask": [
            "What is my name?",
            "What's my name?",
            "Who am I?",
            "What am I called?",
            "Do you know my name?",
            "Do you remember my name?",
            "Can you tell me my name?",
            "How am I called?",
            "Tell me my name.",
            "My name is what?",
            "What did I say my name was?",
            "Which name do I have?",
        ],
        "answer": "Your name is {v}.",
        "not told": "You have not told me your name.",
    },
    "age": {
        "tell": ["I am {v} years old.", "I'm {v} years old.", "I am {v}.", "My age is {v}.", "I turned {v} this year."],
        "reply": "{v} is a good age.",
        "ask": [
            "How old am I?",
            "What is my age?",
            "Do you know how old I am?",
            "Do you remember my age?",
            "Tell me my age.",
            "What did I say about my age?",
        ],
        "answer": "You are {v} years old.",
        "not told": "You have not told me your age.",
    },
    "colour": {
        "tell": [
            "My favourite colour is {v}.",
            "My favorite color is {v}.",
            "I like the colour {v} best.",
            "The colour I like best is {v}.",
            "{v} is my favourite colour.",
        ],
        "reply": "{v} is a nice colour.",
        "ask": [
            "What is my favourite colour?",
            "What's my favorite color?",
            "Which colour do I like best?",
            "Do you remember my favourite colour?",
            "Tell me my favourite colour.",
            "Which colour is my favourite?",
        ],
        "answer": "Your favourite colour is {v}.",
        "not told": "You have not told me your favourite colour.",
    },
    "food": {
        "tell": [
            "My favourite food is {v}.",
            "I like {v} best of all food.",
            "I love to eat {v}.",
            "My favorite food is {v}.",
            "The food I like best is {v}.",
        ],
        "reply": "That sounds tasty.",
        "ask": [
            "What is my favourite food?",
            "Which food do I like best?",
            "What do I love to eat?",
            "Do you remember my favourite food?",
            "What's my favorite food?",
            "What do I like to eat?",
        ],
        "answer": "Your favourite food is {v}.",
        "not told": "You have not told me your favourite food.",
    },
    "city": {
        "tell": [
            "I live in {v}.",
            "My home is in {v}.",
            "I come from {v}.",
            "I am from {v}.",
            "My city is {v}.",
            "My home town is {v}.",
        ],
        "reply": "I hope {v} is a nice place.",
        "ask": [
            "Where do I live?",
            "In which city do I live?",
            "Where am I from?",
            "Where do I come from?",
            "What is my home town?",
            "Do you remember where I live?",
            "Where is my home?",
            "Which city am I from?",
        ],
        "answer": "You said {v}.",
        "not told": "You have not told me where you live.",
    },
    "job": {
        "tell": ["I am a {v}.", "I work as a {v}.", "My job is {v}.", "I'm a {v}."],
        "reply": "That is a good job.",
        "ask": [
            "What is my job?",
            "What do I do for a living?",
            "What do I work as?",
            "Do you remember my job?",
            "What's my profession?",
            "Which job do I have?",
        ],
        "answer": "You work as a {v}.",
        "not told": "You have not told me your job.",
    },
    "hobby": {
        "tell": ["My hobby is {v}.", "In my free time I like {v}.", "I love {v}.", "I like {v} in my free time."],
        "reply": "That sounds like fun.",
        "ask": [
            "What is my hobby?",
            "What do I like to do[ in my free time|]?",
            "Do you remember my hobby?",
            "What's my hobby?",
            "Which hobby do I have?",
        ],
        "answer": "Your hobby is {v}.",
        "not told": "You have not told me your hobby.",
    },
    "relation": {
        "tell": [
            "My {k} is called {v}.",
            "My {k}'s name is {v}.",
            "The name of my {k} is {v}.",
            "I have a {k} called {v}.",
            "I have a {k} named {v}.",
        ],
        "reply": "{v} is a nice name.",
        "ask": [
            "What is my {k} called?",
            "What is my {k}'s name?",
            "What is the name of my {k}?",
            "Do you remember my {k}'s name?",
            "What's my {k}'s name?",
            "How is my {k} called?",
            "Tell me the name of my {k}.",
        ],
        "answer": "Your {k} is called {v}.",
        "not told": "You have not told me the name of your {k}.",
    },
    "secret": {
        "tell": [
            "Remember the word {v}.",
            "The secret word is {v}.",
            "Please remember: {v}.",
            "The password is {v}.",
            "Keep this word in mind: {v}.",
            "Remember this word: {v}.",
        ],
        "reply": "I will remember the word {v}.",
        "ask": [
            "What was the word?",
            "Which word did I tell you to remember?",
            "What is the secret word?",
            "What was the secret word?",
            "Do you remember the word?",
            "What is the password?",
            "Which word was it?",
            "What word should you remember?",
        ],
        "answer": "The word is {v}.",
        "not told": "You have not told me a word to remember.",
    },
    "number": {
        "tell": [
            "Remember the number {v}.",
            "My lucky number is {v}.",
            "My number is {v}.",
            "The number is {v}.",
            "Keep the number {v} in mind.",
            "My favourite number is {v}.",
        ],
        "reply": "I will remember the number {v}.",
        "ask": [
            "What was the number?",
            "Which number did I tell you?",
            "What is my lucky number?",
            "What is my number?",
            "Do you remember the number?",
            "Which number was it?",
            "What is my favourite number?",
        ],
        "answer": "The number is {v}.",
        "not told": "You have not told me a number.",
    },
}
TELL_PETS = [
    "I have {v}.",
    "I've got {v}.",
    "At home I have {v}.",
    "My pets are {v}.",
    "I own {v}.",
    "We have {v}.",
    "There are {v} in my house.",
    "I keep {v}.",
    "I live with {v}.",
]
HOW_MANY_PETS = [
    "How many pets do I have?",
    "How many animals do I have?",
    "How many pets are there in my house?",
    "How many pets have I got?",
    "How many animals have I got?",
    "Can you count my pets?",
    "What is the number of my pets?",
    "How many pets is that?",
    "How many pets do I own?",
    "Count my pets.",
]
WHICH_PETS = [
    "Which pets do I have?",
    "What pets do I have?",
    "Which animals do I have?",
    "What animals have I got?",
    "Do you remember my pets?",
    "What are my pets?",
]
HOW_MANY_OF = ["How many {k} do I have?", "How many {k} have I got?", "Do you remember how many {k} I have?"]
NO_PETS = "You have not told me about pets."
ECHO = [
    "Repeat after me: {v}",
    "Say {v}.",
    "Repeat: {v}",
    "Say the word {v}.",
    "Repeat the word {v}.",
    "Please say {v}.",
    "Can you say {v}?",
    "Write the word {v}.",
]
LAST = [
    "What did I just say?",
    "What did I say before?",
    "What was my last message?",
    "What did I just ask?",
    "What was my last question?",
    "Repeat my last message.",
    "What did I say?",
]
_CORRECT = ["Actually, ", "No, wait: ", "Sorry, I meant: ", "Let me correct that: ", "I was wrong. "]


@dataclass
class Person:
    """What one user has told so far.

    Attributes:
        told: kind, with the relative's word behind it for names of others, to value.
        pets: (number, animal), or None while nothing was said of them.
    """

    told: dict[str, str] = field(default_factory=dict)
    pets: list[tuple[int, str]] | None = None


def tell(person: Person, rng: Random) -> list[Turn]:
    """Let the user say one or two things of themselves."""
    if rng.random() < 0.2:
        return [_tell_pets(person, rng)]
    said = [_statement(person, rng)]
    if rng.random() < 0.15 and len(said[0][0]) < 60:
        other = _statement(person, rng)
        return [(f"{said[0][0]} {other[0]}", rng.choice((other[1], said[0][1])))]
    return said


def _statement(person: Person, rng: Random) -> Turn:
    kind = rng.choices(list(KINDS), (30, 8, 8, 8, 8, 8, 6, 12, 7, 7))[0]
    texts, (key, values) = KINDS[kind], _new_value(kind, rng)
    is_correction = key in person.told
    person.told[key] = values["v"]
    opening = rng.choice(_CORRECT) if is_correction and rng.random() < 0.7 else ""
    question = expand(rng.choice(texts["tell"]), rng, values)
    return opening + question[:1].upper() + question[1:], _filled(str(texts["reply"]), values)


def _filled(text: str, values: dict[str, str]) -> str:
    filled = expand(text, Random(0), values)
    return filled[:1].upper() + filled[1:]


def _new_value(kind: str, rng: Random) -> tuple[str, dict[str, str]]:
    words = table("words")
    if kind == "relation":
        k = rng.choice([*words["family"], *words["pets"]])
        return f"relation {k}", {"k": k, "v": invented.name(rng)}
    value = {
        "name": lambda: invented.name(rng),
        "age": lambda: str(rng.randrange(5, 100)),
        "colour": lambda: rng.choice(words["colours"]),
        "food": lambda: rng.choice(words["foods"]),
        "city": lambda: rng.choice(words["cities"]) if rng.random() < 0.6 else invented.word(rng).capitalize(),
        "job": lambda: rng.choice(words["jobs"]),
        "hobby": lambda: rng.choice(words["hobbies"]),
        "secret": lambda: (
            invented.word(rng)
            if rng.random() < 0.6
            else rng.choice(words["foods"] + words["colours"] + words["without_opposite"])
        ),
        "number": lambda: str(rng.randrange(1, 1000)),
    }[kind]()
    return kind, {"v": value, "k": ""}


def ask(person: Person, rng: Random) -> list[Turn]:
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
    return [(expand(rng.choice(texts["ask"]), rng, values), _filled(str(answer), values))]


def _pets_text(pets: list[tuple[int, str]], rng: Random, as_digits: bool = False) -> str:
    parts = []
    for number, animal in pets:
        many = animal if number == 1 or animal == "fish" else f"{animal}s"
        shown = str(number) if as_digits else ("a" if number == 1 else spelled(number))
        parts.append(f"{shown} {many}")
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _tell_pets(person: Person, rng: Random) -> Turn:
    animals = rng.sample(table("words")["pets"], rng.choices((1, 2, 3), (25, 55, 20))[0])
    person.pets = [(rng.choices((1, 2, 3, 4, 5, 6), (40, 25, 15, 10, 5, 5))[0], animal) for animal in animals]
    values = {"v": _pets_text(person.pets, rng, rng.random() < 0.15)}
    return expand(rng.choice(TELL_PETS), rng, values), "How nice!"


def _ask_pets(person: Person, rng: Random) -> Turn:
    if not person.pets:
        return expand(rng.choice(HOW_MANY_PETS + WHICH_PETS), rng), NO_PETS
    listed = _pets_text(person.pets, rng)
    how = rng.random()
    if how < 0.7:
        total = sum(number for number, _ in person.pets)
        sums = " + ".join(str(number) for number, _ in person.pets)
        shown = f"{listed}: {sums} = {total}" if len(person.pets) > 1 else listed
        return expand(
            rng.choice(HOW_MANY_PETS), rng
        ), f"You have {shown}. That is {total} pet{'s' if total > 1 else ''}."
    if how < 0.85:
        return expand(rng.choice(WHICH_PETS), rng), f"You have {listed}."
    number, animal = rng.choice(person.pets)
    many = animal if animal == "fish" else f"{animal}s"
    return expand(rng.choice(HOW_MANY_OF), rng, {"k": many}), f"You have {_pets_text([(number, animal)], rng)}."


def echo(rng: Random) -> list[Turn]:
    """Ask the model to say some words after the user."""
    text = " ".join(
        invented.word(rng) if rng.random() < 0.5 else rng.choice(table("words")["foods"])
        for _ in range(rng.choice((1, 1, 2, 3)))
    )
    return [(expand(rng.choice(ECHO), rng, {"v": text}), f"{text[:1].upper()}{text[1:]}.")]


def last_message(turns: list[Turn], rng: Random) -> list[Turn]:
    """Ask for the message before."""
    return [(rng.choice(LAST), f'You said: "{turns[-1][0]}"')] if turns and len(turns[-1][0]) < 80 else []


def wordings() -> list[str]:
    """Return all wordings of the user."""
    told = [text for texts in KINDS.values() for key in ("tell", "ask") for text in texts[key]]
    return [*told, *TELL_PETS, *HOW_MANY_PETS, *WHICH_PETS, *HOW_MANY_OF, *ECHO, *LAST]
