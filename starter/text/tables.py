"""The fact tables in ``starter/facts``, read once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tomli

FACTS = Path(__file__).resolve().parent.parent / "facts"
Turn = tuple[str, str]
"""What the user says and what the model answers."""


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
