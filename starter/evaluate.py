"""Ask a model the written test and count: ``python -m starter.evaluate FILE``.

Runs on Jalopy's own engine, greedily unless ``--temperature`` says otherwise, and prints the share
of right answers by category. ``--wrong`` shows the wrong ones. Ends with 1 where a category is
below what it needs. ``--fenced`` asks the bundled model as the program does
(``app/reply/starter_fence.py``), and tells apart where it says that it does not know.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import tomli

from starter.grammar import capital, fill
from starter.text.geography import CONTINENTS
from starter.text.tables import Country, countries

QUESTIONS = Path(__file__).resolve().parent / "evaluation" / "questions.toml"
LONGEST_ANSWER = 256
_SUMS = 112
_DRAW = 20261121
"""Seed of the numbers in sums; fixed, so that scores are comparable."""
_ALSO_COUNTRIES = ("Western Sahara",)

Check = Callable[[str], bool]
Ask = Callable[[list[str]], tuple[str, bool]]
"""Function of the user's messages that returns the last answer and whether it ended by itself."""


@dataclass(frozen=True)
class Case:
    """Conversation of the test.

    Attributes:
        messages: Messages of the user; the answer to the last one counts.
        expected: Right answer, for display.
        is_right: Function that judges the answer.
    """

    messages: list[str]
    expected: str
    is_right: Check


def main() -> int:
    """Evaluate one file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", action="append", help="a category; may be repeated")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="ask only every N-th question")
    parser.add_argument("--wrong", action="store_true", help="show wrong answers")
    parser.add_argument(
        "--fenced", action="store_true", help="as the program holds the bundled model"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    ask = engine_asker(options.file, options.temperature, options.seed, options.fenced)
    report = {}
    for name, category in read_categories().items():
        if options.only and name not in options.only:
            continue
        right, endless, wrong = score(islice(cases(category), None, None, options.every), ask)
        total = right + len(wrong)
        report[name] = {
            "right": right,
            "of": total,
            "share": round(right / total, 4),
            "needed": category["needed"],
            "endless": endless,
            "declined": sum(is_declined(answer) for _, answer in wrong),
        }
        if not options.json:
            verdict = "ok" if right / total >= category["needed"] else "BELOW"
            line = (
                f"{name:16} {right:4} of {total:4}  {right / total:6.1%}  needs "
                f"{category['needed']:4.0%}  {verdict}"
            )
            if endless:
                line += f"  {endless} without end"
            if options.fenced:
                line += f"  {report[name]['declined']} declined"
            print(line, flush=True)
            if not options.wrong:
                continue
            for case, answer in wrong:
                print(
                    f"    {' / '.join(case.messages)}\n      {answer!r}, expected {case.expected!r}"
                )
    if options.json:
        print(json.dumps(report))
    return int(any(scores["share"] < scores["needed"] for scores in report.values()))


def read_categories() -> dict[str, Any]:
    """Return the test by category."""
    return tomli.loads(QUESTIONS.read_text(encoding="utf-8"))


def score(cases: Iterator[Case], ask: Ask) -> tuple[int, int, list[tuple[Case, str]]]:
    """Count right answers and endless ones, and list the wrong ones. An endless answer is wrong."""
    right = endless = 0
    wrong = []
    for case in cases:
        answer, has_ended = ask(case.messages)
        endless += not has_ended
        if has_ended and case.is_right(answer):
            right += 1
        else:
            wrong.append((case, answer))
    return right, endless, wrong


def cases(category: dict[str, Any]) -> Iterator[Case]:
    """Write out a category's conversations."""
    for case in category.get("cases", ()):
        *messages, expected = case
        yield Case(messages, expected, partial(fits, expected=expected))
    over = category.get("over")
    if over == "sums":
        yield from _sums(category["wordings"])
    elif over:
        for index, country in enumerate(countries().values()):
            wording = category["wordings"][index % len(category["wordings"])]
            yield _about(over, country, capital(fill(wording, {"country": country.name})))


def fits(answer: str, expected: str) -> bool:
    """Whether an answer contains the expected text.

    "a & b" expects both, "a | b" one of them, "!a" its absence.
    """
    answer = answer.lower().replace("’", "'")
    return all(
        any(_holds(answer, choice.strip().lower()) for choice in condition.split("|"))
        for condition in expected.split("&")
    )


def _holds(answer: str, text: str) -> bool:
    if text.startswith("!"):
        return text[1:] not in answer
    return text in answer


def _about(topic: str, country: Country, question: str) -> Case:
    if topic == "capital":
        return Case([question], country.capital, lambda answer: country.capital in answer)
    if topic == "continent":
        continents = country.continent.split(" and ")
        return Case(
            [question],
            country.continent,
            lambda answer: named(answer, CONTINENTS) == set(continents),
        )
    if not country.neighbours:
        return Case([question], "no land borders", lambda answer: "no land borders" in answer)
    expected = set(country.neighbours)
    return Case(
        [question],
        ", ".join(expected),
        lambda answer: named(answer, _all_names()) - {country.name} == expected,
    )


def _all_names() -> tuple[str, ...]:
    return (*countries(), *_ALSO_COUNTRIES)


def named(answer: str, names: tuple[str, ...]) -> set[str]:
    """Return the names in an answer; of names within names only the longest counts."""
    names_in_answer = set()
    for name in sorted(names, key=len, reverse=True):
        bare = name.removeprefix("the ")
        if bare in answer:
            names_in_answer.add(name)
            answer = answer.replace(bare, "·")
    return names_in_answer


def _sums(wordings: list[str]) -> Iterator[Case]:
    """Yield sums of numbers of up to two digits, and products with a number of one digit."""
    rng = Random(_DRAW)
    for index in range(_SUMS):
        operation, wording = wordings[index % len(wordings)].split(": ", 1)
        x = rng.randrange(100)
        y = rng.randrange(100)
        if operation == "-" and x < y:
            x, y = y, x
        elif operation == "x" and index % 3 == 0:
            x = rng.randrange(11, 100)
            y = rng.randrange(2, 10)
        elif operation == "x":
            x = rng.randrange(2, 11)
            y = rng.randrange(2, 11)
        elif operation == "/":
            y = rng.randrange(2, 11)
            x = y * rng.randrange(1, 11)
        result = {"+": x + y, "-": x - y, "x": x * y, "/": x // y if y else 0}[operation]
        question = fill(wording, {"x": str(x), "y": str(y)})
        yield Case([question], str(result), partial(_ends_in, result=result))


def _ends_in(answer: str, result: int) -> bool:
    return last_number(answer) == str(result)


def last_number(answer: str) -> str:
    """Return the last number of an answer."""
    words = "".join(char if char.isdigit() or char == "-" else " " for char in answer).split()
    if not words:
        return ""
    return words[-1]


def is_declined(answer: str) -> bool:
    """Whether an answer says that the model does not know, or cannot."""
    return answer.startswith(
        ("I don't know", "I cannot", "I do not understand", "I am sorry. I am only")
    )


def engine_asker(file: Path, temperature: float, seed: int, is_fenced: bool = False) -> Ask:
    """Open a model and return a function that holds a conversation with it."""
    from app.reply.starter_fence import fence_of
    from engine import Model, Sampling

    model = Model.open(file, threads=1)  # a model this small gains nothing from more threads
    session = model.session()
    sampling = Sampling(temperature=temperature, seed=seed)

    def ask(messages: list[str]) -> tuple[str, bool]:
        chat = model.chat()
        text = ""
        for message in messages:
            session.prefill(chat.add_user(message))
            fence = fence_of(model, chat) if is_fenced else None
            pieces = list(session.generate(sampling, LONGEST_ANSWER, constraint=fence))
            text = "".join(piece.text for piece in pieces)
            chat.add_reply([piece.token_id for piece in pieces], text)
        return text, session.finish_reason == "stop"

    return ask


if __name__ == "__main__":
    sys.exit(main())
