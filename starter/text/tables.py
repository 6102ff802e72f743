"""The fact tables in ``starter/facts``, read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import tomli

FACTS = Path(__file__).resolve().parent.parent / "facts"
Turn = tuple[str, str]
"""What the user says and what the model answers."""


class Writer(Random):
    """Decides everything in a text; the same seed writes the same.

    Attributes:
        share_more: how often a question is asked in one of the wordings under ``more``. With few
            wordings a model learns sooner what is asked, with many it learns to understand those
            that it has not read.
        share_endless: how many of the questions beyond the model invite it to go on for ever.
    """

    share_more = 0.0
    share_endless = 0.0

    def wording(self, few: Sequence[str], more: Sequence[str] = ()) -> str:
        """Choose one."""
        if self.share_more and more and self.random() < self.share_more:
            return self.choice(more)
        return self.choice(few)


@dataclass(frozen=True)
class Country:
    """One line of ``countries.tsv``."""

    name: str
    """As in the middle of a sentence: "the Netherlands"."""
    capital: str
    continent: str
    neighbours: tuple[str, ...]
    other_names: tuple[str, ...]
    note: str
    """What is to be said behind the capital; "" for nothing."""

    @property
    def bare(self) -> str:
        """The name without its article."""
        return self.name.removeprefix("the ")


@cache
def countries() -> dict[str, Country]:
    """Return all countries by name."""
    found = {}
    for line in (FACTS / "countries.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, capital, continent, neighbours, others, note = line.split("\t")
        found[name] = Country(name, capital, continent, _listed(neighbours), _listed(others), note)
    return found


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(", ") if part)


@cache
def table(name: str) -> dict[str, Any]:
    """Return one of the TOML files, by its name without ending."""
    return tomli.loads((FACTS / f"{name}.toml").read_text(encoding="utf-8"))


def wordings_of(topic: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return the few and the many wordings of each kind of question."""
    more = table(f"more/{topic}")
    return {kind: (few, more.get(kind, [])) for kind, few in table("wordings")[topic].items()}
