"""Wordings with alternatives: ``"[What is|Tell me] the capital of {country}"`` stands for several
sentences.

``expand`` writes one of them; ``pattern`` makes the expression that matches all of them, with which
the tests make sure that no question of the evaluation is a wording of the training text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random

_SLOT = re.compile(r"\{([^{}]+)\}")
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_WORD = r"[\w'-]+"
NUMBER_SLOTS = frozenset({"x", "y", "z", "number1", "number2", "number3"})


def choose(template: str, rng: Random) -> str:
    """Decide all alternatives of a wording; its slots stay."""
    while "[" in template:
        template = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), template, count=1)
    return template


def fill(template: str, values: Mapping[str, str] | Callable[[str], str]) -> str:
    """Put values into the slots.

    Args:
        template: without alternatives.
        values: slot name to text, or a function that makes the text; ``{an a}`` writes "an" or "a"
            before the value of ``a``, ``{A}`` begins it with a capital letter, ``{An a}`` both.
    """
    look_up = values if callable(values) else values.__getitem__

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name.startswith(("an ", "An ")):
            value = with_article(look_up(name[3:]))
            return capital(value) if name[0] == "A" else value
        if name == "A":
            return capital(look_up("a"))
        return look_up(name)

    return _SLOT.sub(value_of, template)


def expand(
    template: str, rng: Random, values: Mapping[str, str] | Callable[[str], str] | None = None
) -> str:
    """Write one sentence of a wording."""
    return re.sub(r"  +", " ", fill(choose(template, rng), values or {})).strip()


def capital(text: str) -> str:
    """Begin a text with a capital letter."""
    return text[:1].upper() + text[1:]


def enumerated(names: Sequence[str]) -> str:
    """Write "A, B and C"."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def with_article(noun: str) -> str:
    """Put "a" or "an" before a noun."""
    return f"{'an' if noun[0] in 'aeiouAEIOU' else 'a'} {noun}"


def normalise(text: str) -> str:
    """Reduce a sentence to lower-case words, as which two wordings are compared."""
    text = text.lower().replace("’", "'").replace("what's", "what is").replace("who's", "who is")
    return " ".join(re.sub(r"[^\w+*/÷×-]+", " ", text).split())


def pattern(template: str, slot_words: int = 4) -> re.Pattern[str]:
    """Return a pattern for all normalised sentences of a wording, with up to ``slot_words`` words
    per slot."""
    slots = iter(_SLOT.findall(template))
    text = normalise_template(_SLOT.sub(" \0 ", template))
    expression = "".join(_piece(char, slots, slot_words) for char in text)
    return re.compile(re.sub(r"(\\ )+", r"\\ *", expression))


def normalise_template(template: str) -> str:
    """Normalise the words of a wording and leave its alternatives and slots."""
    text = template.lower().replace("what's", "what is").replace("who's", "who is")
    return " ".join(re.sub(r"[^\w+*/÷×\-\[\]|\0]+", " ", text).split())


def _piece(char: str, slots: object, slot_words: int) -> str:
    if char == "[":
        return "(?:"
    if char == "]":
        return ")"
    if char == "|":
        return "|"
    if char == "\0":
        name = next(slots)  # type: ignore[call-overload]
        if name in NUMBER_SLOTS:
            return r"(?:\d+|[a-z-]+)"
        return f"{_WORD}(?: {_WORD}){{0,{slot_words - 1}}}"
    return re.escape(char)
