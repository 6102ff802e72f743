"""Days, months and seasons."""

from __future__ import annotations

from collections.abc import Callable

from starter.grammar import enumerated, expand
from starter.text.arithmetic import spelled
from starter.text.tables import Turn, Writer, wordings_of

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
_LENGTHS = ["31", "28", "31", "30", "31", "30", "31", "31", "30", "31", "30", "31"]
_SEASONS = [
    "winter",
    "winter",
    "spring",
    "spring",
    "spring",
    "summer",
    "summer",
    "summer",
    "autumn",
    "autumn",
    "autumn",
    "winter",
]
PLACES = [
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
]
ORDINALS = ("1st", "2nd", "3rd", *(f"{n}th" for n in range(4, 13)))

ASK = wordings_of("calendar")
_WEIGHTS = {
    "after": 14,
    "before": 14,
    "tomorrow": 6,
    "yesterday": 6,
    "steps after": 8,
    "steps before": 6,
    "place": 7,
    "day place": 4,
    "number": 4,
    "length": 8,
    "season": 6,
    "weekend": 4,
    "days": 2,
    "months": 2,
    "seasons": 2,
    "weekend days": 2,
    "shortest": 2,
}


def turns(rng: Writer) -> list[Turn]:
    """Ask one thing about the calendar, or some in a row."""
    conversation = [_turn(rng)]
    while rng.random() < 0.25:
        conversation.append(_turn(rng))
    return conversation


def _turn(rng: Writer) -> Turn:
    question_type = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    if question_type in ("after", "before"):
        return _neighbour(question_type, rng)
    n, day, month, p = (
        rng.randrange(2, 6),
        rng.randrange(7),
        rng.randrange(12),
        rng.randrange(7 if question_type == "day place" else 12),
    )
    values = {
        "n": rng.choice((str(n), spelled(n))),
        "p": PLACES[p] if rng.random() < 0.7 else ORDINALS[p],
        "c": rng.choice((str(p + 1), spelled(p + 1))),
        "x": MONTHS[month] if question_type in ("number", "length", "season") else DAYS[day],
    }
    return expand(rng.wording(*ASK[question_type]), rng, values), answer(
        question_type, n, day, month, p
    )


def _neighbour(question_type: str, rng: Writer) -> Turn:
    names, word = (DAYS, "day") if rng.random() < 0.5 else (MONTHS, "month")
    index = rng.randrange(len(names))
    template = rng.wording(*ASK[question_type]).replace("[day|month]", word)
    neighbour = names[(index + (1 if question_type == "after" else -1)) % len(names)]
    return expand(
        template, rng, {"x": names[index]}
    ), f"{neighbour} comes {question_type} {names[index]}."


def answer(question_type: str, n: int, day: int, month: int, p: int) -> str:
    """Return the answer to a kind of question: ``n`` days from a ``day``, a ``month``, or place
    ``p``."""
    name = MONTHS[month]
    answers: dict[str, Callable[[], str]] = {
        "tomorrow": lambda: f"Tomorrow is {DAYS[(day + 1) % 7]}.",
        "yesterday": lambda: f"Yesterday was {DAYS[(day - 1) % 7]}.",
        "steps after": lambda: (
            f"{spelled(n).capitalize()} days after {DAYS[day]} is {DAYS[(day + n) % 7]}."
        ),
        "steps before": lambda: (
            f"{spelled(n).capitalize()} days before {DAYS[day]} is {DAYS[(day - n) % 7]}."
        ),
        "place": lambda: f"The {PLACES[p]} month of the year is {MONTHS[p]}.",
        "day place": lambda: f"The {PLACES[p]} day of the week is {DAYS[p % 7]}.",
        "number": lambda: f"{name} is the {PLACES[month]} month of the year.",
        "length": lambda: (
            f"{name} has {_LENGTHS[month]} days"
            + (", and 29 in a leap year." if month == 1 else ".")
        ),
        "season": lambda: f"{name} is in {_SEASONS[month]}, in the north of the world.",
        "weekend": lambda: (
            f"{DAYS[day]} is on the weekend." if day > 4 else f"{DAYS[day]} is a weekday."
        ),
        "days": lambda: f"The days are {enumerated(DAYS)}.",
        "months": lambda: f"The months are {enumerated(MONTHS)}.",
        "seasons": lambda: "The seasons are spring, summer, autumn and winter.",
        "weekend days": lambda: "The weekend is Saturday and Sunday.",
        "shortest": lambda: "February is the shortest month.",
    }
    return answers[question_type]()


def wordings() -> list[str]:
    """Return all wordings of the user."""
    return [
        template
        for few_wordings, many_wordings in ASK.values()
        for template in few_wordings + many_wordings
    ]
