"""How much a model is asked to think before it answers, and what that is in the variables of its
chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

AUTO = "auto"
ON = "on"
OFF = "off"
LEVELS = ("low", "medium", "high")
MOST_BUDGET_TOKENS = 1 << 20

LEVEL_BUDGETS_TOKENS = {"low": 512, "medium": 2048}
"""Limits on a thought, in tokens, that levels set where a template knows no levels."""

_EFFORT_NAMES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
_EFFORTS = {
    OFF: ("none", "no_think", "minimal", "low"),
    "low": ("low", "minimal"),
    "medium": ("medium",),
    "high": ("high",),
}
"""Words for a level in the order of preference; the first that the template's source quotes is
taken."""


@dataclass(frozen=True)
class ThinkingMode:
    """How much a model is asked to think.

    Attributes:
        is_on: whether it shall think; None leaves it to the template.
        level: one of ``LEVELS``, "" for none.
        budget_tokens: limit on a thought in tokens, None for none.
    """

    is_on: bool | None = None
    level: str = ""
    budget_tokens: int | None = None

    @classmethod
    def parse(cls, text: str) -> ThinkingMode:
        """Return the mode for ``auto``, ``on``, ``off``, a level, or a number of tokens.

        Raises:
            ValueError: it is none of these.
        """
        word = text.strip().lower()
        if word == AUTO:
            return cls()
        if word in (ON, OFF):
            return cls(word == ON)
        if word in LEVELS:
            return cls(True, word)
        if not (
            word.isascii() and word.isdigit() and len(word) <= 7 and int(word) <= MOST_BUDGET_TOKENS
        ):
            raise ValueError(text)
        if int(word):
            return cls(True, budget_tokens=int(word))
        return cls(False)

    def __str__(self) -> str:
        """Write the mode in the words that ``parse`` takes."""
        if self.is_on is None:
            return AUTO
        if not self.is_on:
            return OFF
        return self.level or (str(self.budget_tokens) if self.budget_tokens is not None else ON)

    @property
    def next_best(self) -> ThinkingMode | None:
        """The mode to ask for where a template refuses this one; None for the template's own."""
        if self.level:
            if self.level == "medium":
                return ThinkingMode(True, "high")
            return ThinkingMode(True)
        return None

    def variables(self, source: str) -> dict[str, Any]:
        """Return the variables that ask a template for this mode; those that it does not know are
        harmless.

        Args:
            source: of the template, for the words in which it takes levels.
        """
        if self.is_on is None:
            return {}
        found: dict[str, Any] = {"enable_thinking": self.is_on, "thinking": self.is_on}
        if _is_quoted("disabled", source):
            if self.is_on:
                found["thinking_mode"] = "enabled"
            else:
                found["thinking_mode"] = "disabled"
        if not self.is_on or self.budget_tokens is not None:
            found["thinking_budget"] = self.budget_tokens or 0
        wanted = self.level or (
            OFF if not self.is_on else "high" if _is_quoted("no_think", source) else ""
        )
        if wanted:
            quoted = [word for word in _EFFORTS[wanted] if _is_quoted(word, source)]
            effort = [*quoted, "low" if wanted == OFF else wanted][0]
            found |= {name: effort for name in _EFFORT_NAMES if name in source}
        return found


def knows_levels(source: str) -> bool:
    """Whether a template takes levels of thinking."""
    return any(name in source for name in _EFFORT_NAMES)


def _is_quoted(word: str, source: str) -> bool:
    return f"'{word}'" in source or f'"{word}"' in source
