"""Thinking modes: how much a model thinks before it answers, and the variables of its chat template
that request it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

AUTO = "auto"
ON = "on"
OFF = "off"
LEVELS = ("low", "medium", "high")
MAX_BUDGET_TOKENS = 1 << 20

LEVEL_BUDGETS_TOKENS = {"low": 512, "medium": 2048}
"""Limits on the tokens of a thought for each level, if the template has no levels."""

_EFFORT_NAMES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
_EFFORTS = {
    OFF: ("none", "no_think", "minimal", "low"),
    "low": ("low", "minimal"),
    "medium": ("medium",),
    "high": ("high",),
}
"""Words for a level in order of preference. The first one that the template's source quotes is
used."""


@dataclass(frozen=True)
class ThinkingMode:
    """Amount of thinking that is requested from a model.

    Attributes:
        is_on: whether the model thinks; None leaves it to the template.
        level: one of ``LEVELS``; empty for none.
        budget_tokens: limit on the tokens of a thought; None for no limit.
    """

    is_on: bool | None = None
    level: str = ""
    budget_tokens: int | None = None

    @classmethod
    def parse(cls, text: str) -> ThinkingMode:
        """Return the mode for ``auto``, ``on``, ``off``, a level, or a number of tokens.

        Raises:
            ValueError: the text is none of these.
        """
        word = text.strip().lower()
        if word == AUTO:
            return cls()
        if word in (ON, OFF):
            return cls(word == ON)
        if word in LEVELS:
            return cls(True, word)
        if not (
            word.isascii() and word.isdigit() and len(word) <= 7 and int(word) <= MAX_BUDGET_TOKENS
        ):
            raise ValueError(text)
        if int(word):
            return cls(True, budget_tokens=int(word))
        return cls(False)

    def __str__(self) -> str:
        """Return the mode in the words of ``parse``."""
        if self.is_on is None:
            return AUTO
        if not self.is_on:
            return OFF
        if self.level:
            return self.level
        return ON if self.budget_tokens is None else str(self.budget_tokens)

    @property
    def next_best(self) -> ThinkingMode | None:
        """Mode to request if a template refuses this one; None for the template's default."""
        if self.level:
            if self.level == "medium":
                return ThinkingMode(True, "high")
            return ThinkingMode(True)
        return None

    def variables(self, source: str) -> dict[str, Any]:
        """Return the variables that request this mode from a template. Templates ignore variables
        that they do not know.

        Args:
            source: source of the template, which has the words for levels.
        """
        if self.is_on is None:
            return {}
        variables: dict[str, Any] = {"enable_thinking": self.is_on, "thinking": self.is_on}
        if _is_quoted("disabled", source):
            variables["thinking_mode"] = "enabled" if self.is_on else "disabled"
        if not self.is_on or self.budget_tokens is not None:
            variables["thinking_budget"] = self.budget_tokens or 0
        level = self.level
        if not self.is_on:
            level = OFF
        elif not level and _is_quoted("no_think", source):
            level = "high"
        if level:
            default = "low" if level == OFF else level
            words = (word for word in _EFFORTS[level] if _is_quoted(word, source))
            effort = next(words, default)
            variables |= {name: effort for name in _EFFORT_NAMES if name in source}
        return variables


def knows_levels(source: str) -> bool:
    """Whether a template has levels of thinking."""
    return any(name in source for name in _EFFORT_NAMES)


def _is_quoted(word: str, source: str) -> bool:
    return f"'{word}'" in source or f'"{word}"' in source
