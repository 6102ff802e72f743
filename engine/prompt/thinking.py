"""Thinking of a model: the markers of thoughts, and the modes that a request may choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ThoughtMarker:
    """Markers of a family of models.

    Attributes:
        opening: text before the thought.
        closing: text after the thought.
        blank: white space between ``opening`` and ``closing`` if the thought is empty.
        gap: white space after ``closing``.
        next_part: text that begins another part of the reply after the thought; empty if the answer
            follows immediately.
        answer: text before the answer, in its own part.
        tokens: texts of the control tokens in the markers, if not ``opening`` and ``closing`` as a
            whole. They mark a thought only in a vocabulary that has the first of them.
    """

    opening: str
    closing: str
    blank: str = ""
    gap: str = ""
    next_part: str = ""
    answer: str = ""
    tokens: tuple[str, ...] = ()

    @property
    def end(self) -> str:
        """Text that ends a thought and begins the answer."""
        return f"{self.blank[:1]}{self.closing}{self.next_part}{self.answer}{self.gap}"

    @property
    def empty(self) -> str:
        """Text at the beginning of a reply that makes the model answer without a thought."""
        return f"{self.opening}{self.blank[1:]}{self.end}"

    def in_vocabulary(self, control_texts: Mapping[str, int]) -> frozenset[int]:
        """Return the ids of the control tokens, whose text a decoder would omit."""
        texts = self.tokens or (self.opening, self.closing)
        if self.tokens and self.tokens[0] not in control_texts:
            return frozenset()
        return frozenset(control_texts[text] for text in texts if text in control_texts)


HARMONY = ThoughtMarker(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    next_part="<|start|>assistant",
    answer="<|channel|>final<|message|>",
    tokens=("<|channel|>", "<|message|>", "<|start|>", "<|end|>"),
)
"""Channels of a reply (gpt-oss)."""

SOLAR = ThoughtMarker(
    "<|think|>",
    "<|end|>",
    next_part="<|begin|>assistant",
    answer="<|content|>",
    tokens=("<|content|>", "<|think|>", "<|begin|>", "<|end|>"),
)

_ON_LINES = ("\n\n", "\n\n")

THOUGHT_MARKERS = (
    ThoughtMarker("<think>", "</think>", *_ON_LINES),
    ThoughtMarker("<thinking>", "</thinking>", *_ON_LINES),
    ThoughtMarker("<thought>", "</thought>", *_ON_LINES),
    ThoughtMarker("<reasoning>", "</reasoning>", *_ON_LINES),
    ThoughtMarker("<seed:think>", "</seed:think>"),
    ThoughtMarker("<mm:think>", "</mm:think>"),
    ThoughtMarker("<think:opensource>", "</think:opensource>"),
    ThoughtMarker("[THINK]", "[/THINK]"),
    ThoughtMarker("◁think▷", "◁/think▷"),
    ThoughtMarker("<|begin_of_thought|>", "<|end_of_thought|>"),
    ThoughtMarker("<|START_THINKING|>", "<|END_THINKING|>"),
    ThoughtMarker("<|inner_prefix|>", "<|inner_suffix|>"),
    ThoughtMarker(
        "<|channel>thought", "<channel|>", blank="\n", tokens=("<|channel>", "<channel|>")
    ),
    HARMONY,
    SOLAR,
)
"""Markers of the models in use."""

ANSWER_FRAMES = {"<response>": "</response>", "<answer>": "</answer>"}
"""Tags that some models (Granite 3.3, Hunyuan) write around the answer after a thought."""


def opened_by(opening: str) -> ThoughtMarker | None:
    """Return the marker of a thought that the end of a prompt opens; None if it opens none."""
    opening = opening.rstrip()
    return next((marker for marker in THOUGHT_MARKERS if opening.endswith(marker.opening)), None)


def closed_by(opening: str) -> ThoughtMarker | None:
    """Return the marker of a thought that the end of a prompt closes; None if it closes none."""
    opening = opening.rstrip()
    return next(
        (
            marker
            for marker in THOUGHT_MARKERS
            if opening.endswith(marker.closing) and not marker.next_part
        ),
        None,
    )


def mentioned_in(source: str) -> ThoughtMarker | None:
    """Return the first marker in the source of a template; None if it has none."""
    return next(
        (
            marker
            for marker in THOUGHT_MARKERS
            if marker.opening in source or (marker.closing in source and not marker.next_part)
        ),
        None,
    )


def split_channels(reply: str) -> tuple[str, str] | None:
    """Split a reply of several parts into thought and answer; None for any other reply.

    Templates of models that answer in parts take thought and answer separately, and refuse a
    message with the markers.
    """
    for marker in THOUGHT_MARKERS:
        if not marker.next_part or not reply.lstrip().startswith((marker.opening, marker.answer)):
            continue
        thought, separator, answer = reply.rpartition(marker.answer)
        if not separator:
            thought = reply
        for text in (marker.opening, marker.closing, marker.next_part):
            thought = thought.replace(text, "")
        if not separator:
            answer = ""
        return thought, answer
    return None


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
