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
"""Message of the user and reply of the model."""


class Writer(Random):
    """Random choices of a text; the same seed writes the same text.

    Attributes:
        share_more: share of questions in one of the wordings under ``more``. With few wordings a
            model learns facts sooner; with many it learns to understand new wordings.
        share_endless: share of the unknown questions that invite an endless answer.
    """

    share_more = 0.0
    share_endless = 0.0

    def wording(self, few_wordings: Sequence[str], many_wordings: Sequence[str] = ()) -> str:
        """Return one of the wordings."""
        if self.share_more and many_wordings and self.random() < self.share_more:
            return self.choice(many_wordings)
        return self.choice(few_wordings)


@dataclass(frozen=True)
class Country:
    """Row of ``countries.tsv``."""

    name: str
    """Name as in the middle of a sentence: "the Netherlands"."""
    capital: str
    continent: str
    neighbours: tuple[str, ...]
    other_names: tuple[str, ...]
    note: str
    """Text after the capital; "" for none."""

    @property
    def bare(self) -> str:
        """Name without the article."""
        return self.name.removeprefix("the ")


@cache
def countries() -> dict[str, Country]:
    """Return all countries by name."""
    countries_by_name = {}
    for line in (FACTS / "countries.tsv").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, capital, continent, neighbours, others, note = line.split("\t")
        countries_by_name[name] = Country(
            name, capital, continent, _listed(neighbours), _listed(others), note
        )
    return countries_by_name


def _listed(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(", ") if name)


@cache
def table(name: str) -> dict[str, Any]:
    """Return the contents of a TOML file, by its name without suffix."""
    return tomli.loads((FACTS / f"{name}.toml").read_text(encoding="utf-8"))


def wordings_of(topic: str) -> dict[str, tuple[list[str], list[str]]]:
    """Return (few wordings, many wordings) by type of question."""
    many_wordings = table(f"more/{topic}")
    return {
        kind: (few_wordings, many_wordings.get(kind, []))
        for kind, few_wordings in table("wordings")[topic].items()
    }
