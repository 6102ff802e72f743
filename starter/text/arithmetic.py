"""Sums, as digits and as words; what has two steps is written in two steps."""

from __future__ import annotations

import re

from starter.grammar import choose, expand
from starter.text.tables import Turn, Writer, wordings_of

_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

ASK = wordings_of("arithmetic")
_WEIGHTS = {
    "+": 30,
    "-": 24,
    "x": 22,
    "/": 10,
    "bigger": 3,
    "smaller": 2,
    "next": 2,
    "before": 2,
    "double": 2,
    "half": 2,
    "even": 2,
    "count": 1,
    "count to": 1,
    "more": 3,
    "fewer": 3,
}
_THINGS = (
    "apples",
    "books",
    "coins",
    "eggs",
    "cups",
    "stones",
    "pens",
    "balls",
    "cards",
    "cakes",
    "nuts",
    "stamps",
    "chairs",
    "shells",
    "keys",
)


def spelled(number: int) -> str:
    """Write a number up to 99 in words."""
    if number < 20:
        return _ONES[number]
    tens, units = divmod(number, 10)
    return _TENS[tens - 2] + (f"-{_ONES[units]}" if units else "")


def turns(rng: Writer) -> list[Turn]:
    """Ask for one sum, or for some in a row."""
    conversation = [_turn(rng)]
    while rng.random() < 0.3:
        conversation.append(_turn(rng))
    return conversation


def _turn(rng: Writer) -> Turn:
    question_type = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    x, y, answer = _sum(question_type, rng)
    template = choose(rng.wording(*ASK[question_type]), rng)
    in_words = (
        rng.random() < 0.15
        and max(x, y) < 100
        and "count" not in question_type
        and not re.search(r"[-+*/×÷]", template)
    )
    values = {"x": spelled(x) if in_words else str(x), "y": spelled(y) if in_words else str(y)}
    values |= {
        "things": rng.choice(_THINGS),
        "Name": rng.choice(("Ada", "Tom", "Maria", "Omar", "Kim", "Ben")),
    }
    return expand(template, rng, values), answer


def _any(rng: Writer) -> int:
    return rng.randrange(100) if rng.random() < 0.75 else rng.randrange(21)


def _sum(question_type: str, rng: Writer) -> tuple[int, int, str]:
    x, y = _any(rng), _any(rng)
    if question_type in ("+", "more"):
        return x, y, _total(x, y)
    if question_type == "fewer" or (question_type == "-" and rng.random() < 0.93):
        x, y = max(x, y), min(x, y)
    if question_type in ("-", "fewer"):
        return x, y, _difference(x, y)
    if question_type == "x":
        return _product(rng)
    if question_type == "/":
        y, z = rng.randrange(1, 13), rng.randrange(0, 13)
        return y * z, y, f"{y * z} / {y} = {z}."
    if question_type in ("bigger", "smaller"):
        y = y if y != x else x + 1
        return x, y, f"{max(x, y) if question_type == 'bigger' else min(x, y)} is {question_type}."
    if question_type in ("next", "before"):
        x = x + 1
        return (
            x,
            0,
            f"{x + 1} comes after {x}."
            if question_type == "next"
            else f"{x - 1} comes before {x}.",
        )
    if question_type == "double":
        return x, 0, f"Twice {x} is {2 * x}."
    if question_type == "half":
        return 2 * (x // 2), 0, f"Half of {2 * (x // 2)} is {x // 2}."
    if question_type == "even":
        return x, 0, f"{x} is {'odd' if x % 2 else 'even'}."
    x = 1 if question_type == "count to" else rng.randrange(30)
    y = x + rng.randrange(2, 12)
    return x, y, ", ".join(str(number) for number in range(x, y + 1)) + "."


def _total(x: int, y: int) -> str:
    """Add tens and ones apart, as a model can that sees digits one by one."""
    if x < 10 and y < 10:
        return f"{x} + {y} = {x + y}."
    return f"{x} + {y} = {x // 10 * 10 + y // 10 * 10} + {x % 10 + y % 10} = {x + y}."


def _difference(x: int, y: int) -> str:
    """Take the tens away first."""
    if y < 10 or x < y or y % 10 == 0:
        return f"{x} - {y} = {x - y}."
    return f"{x} - {y} = {x - y // 10 * 10} - {y % 10} = {x - y}."


def _product(rng: Writer) -> tuple[int, int, str]:
    draw = rng.random()
    if draw < 0.55:
        x, y = rng.randrange(13), rng.randrange(13)
        return x, y, f"{x} x {y} = {x * y}."
    if draw < 0.97:
        x, y = rng.randrange(11, 100), rng.randrange(2, 10)
        if rng.random() < 0.3:
            return y, x, _in_steps(y, x, y * (x // 10 * 10), y * (x % 10))
        return x, y, _in_steps(x, y, (x // 10 * 10) * y, (x % 10) * y)
    x, y = rng.randrange(11, 100), rng.randrange(11, 100)
    return x, y, _in_steps(x, y, x * (y // 10 * 10), x * (y % 10))


def _in_steps(x: int, y: int, first: int, second: int) -> str:
    return f"{x} x {y} = {first} + {second} = {first + second}."


def wordings() -> list[str]:
    """Return all wordings of the user."""
    return [
        template
        for few_wordings, many_wordings in ASK.values()
        for template in few_wordings + many_wordings
    ]
