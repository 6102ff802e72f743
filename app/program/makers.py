"""Sampling parameters recommended by a model's file, or else by its makers
(``config/makers_sampling.toml``).
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from app.program.settings import Source
from app.program.small_file import bundled_table
from app.text.record import record
from engine.prompt.thinking import ThinkingMode

Advice = Mapping[str, tuple[float, Source]]
"""Recommended value and its source, by the name of a field of ``engine.Sampling``."""
_MOST_NAME_CHARS = 100
"""Limit on a name in a model file; longer ones match no family."""


@record
class Family:
    """Models with the same recommendations, as in the file."""

    name: str
    architectures: tuple[str, ...]
    names: tuple[str, ...]
    sampling: Mapping[str, float]
    thinking: Mapping[str, float] | None = None
    thinks: bool = False

    def values(self, mode: ThinkingMode) -> Mapping[str, float]:
        """Return the recommendations for a thinking mode."""
        if mode.is_on is None:
            has_thought = self.thinks
        else:
            has_thought = mode.is_on
        if has_thought and self.thinking is not None:
            return self.thinking
        return self.sampling


def advice_of(metadata: Mapping[str, Any], mode: ThinkingMode) -> Advice:
    """Return the recommendations for a GGUF file with this metadata.

    The metadata is not trusted.
    """
    from engine.sampling.advice import sampling_advice  # imports NumPy

    family = family_of(metadata)
    if family:
        advice = {name: (value, Source.MAKER) for name, value in family.values(mode).items()}
    else:
        advice = {}
    return advice | {
        name: (value, Source.MODEL) for name, value in sampling_advice(metadata).items()
    }


def family_of(metadata: Mapping[str, Any]) -> Family | None:
    """Return the known family of a model; None if there is none."""
    architecture = metadata.get("general.architecture")
    names = [_plain(metadata.get(f"general.{key}")) for key in ("basename", "name")]
    for family in known_families():
        fits = any(fnmatchcase(name, pattern) for name in names for pattern in family.names)
        if fits and architecture in family.architectures:
            return family
    return None


@cache
def known_families() -> tuple[Family, ...]:
    """Return all families; the first match wins."""
    return tuple(Family(**row) for row in bundled_table("makers_sampling.toml")["family"])


def _plain(name: object) -> str:
    is_usable = isinstance(name, str) and len(name) <= _MOST_NAME_CHARS
    if is_usable:
        return "-".join(str(name).lower().split())
    return ""
