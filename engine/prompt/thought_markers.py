"""How models mark a thought in a reply: the texts before it, after it, and around the answer that
follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ThoughtMarker:
    """One way to mark a thought.

    Attributes:
        opening: text before the thought.
        closing: text after it.
        blank: white space between the two where the thought is empty.
        gap: white space after the closing.
        again: text that begins another part of the reply after the thought; "" where the answer
            follows at once.
        answer: text before the answer, in its own part.
        tokens: texts of control tokens that these are made of, if not ``opening`` and ``closing``
            as a whole. They mean a thought only in a vocabulary that has the first of them.
    """

    opening: str
    closing: str
    blank: str = ""
    gap: str = ""
    again: str = ""
    answer: str = ""
    tokens: tuple[str, ...] = ()

    @property
    def end(self) -> str:
        """The text that ends a thought and begins the answer."""
        return f"{self.blank[:1]}{self.closing}{self.again}{self.answer}{self.gap}"

    @property
    def empty(self) -> str:
        """The text of a reply's beginning that makes the model answer without a thought."""
        return f"{self.opening}{self.blank[1:]}{self.end}"

    def in_vocabulary(self, control_texts: Mapping[str, int]) -> frozenset[int]:
        """Return the ids of its control tokens, whose text a decoder would leave out."""
        texts = self.tokens or (self.opening, self.closing)
        if self.tokens and self.tokens[0] not in control_texts:
            return frozenset()
        return frozenset(control_texts[text] for text in texts if text in control_texts)


HARMONY = ThoughtMarker(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    again="<|start|>assistant",
    answer="<|channel|>final<|message|>",
    tokens=("<|channel|>", "<|message|>", "<|start|>", "<|end|>"),
)
"""gpt-oss: channels of a reply."""

SOLAR = ThoughtMarker(
    "<|think|>",
    "<|end|>",
    again="<|begin|>assistant",
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
"""Frames that some models (Granite 3.3, Hunyuan) write around the answer after a thought."""


def opened_by(opening: str) -> ThoughtMarker | None:
    """Return the marker of the thought that a prompt's last words open; None if they open none."""
    opening = opening.rstrip()
    return next((marker for marker in THOUGHT_MARKERS if opening.endswith(marker.opening)), None)


def closed_by(opening: str) -> ThoughtMarker | None:
    """Return the marker of the thought that a prompt's last words close; None if they close
    none."""
    opening = opening.rstrip()
    return next(
        (
            marker
            for marker in THOUGHT_MARKERS
            if opening.endswith(marker.closing) and not marker.again
        ),
        None,
    )


def mentioned_in(source: str) -> ThoughtMarker | None:
    """Return the first marker that a template speaks of; None if it speaks of none."""
    return next(
        (
            m
            for m in THOUGHT_MARKERS
            if m.opening in source or (m.closing in source and not m.again)
        ),
        None,
    )


def parts_of_channels(reply: str) -> tuple[str, str] | None:
    """Split a reply of several parts into thought and answer; None for any other reply.

    Templates of models that answer in parts take thought and answer apart, and refuse a message
    with the markers.
    """
    for marker in THOUGHT_MARKERS:
        if not marker.again or not reply.lstrip().startswith((marker.opening, marker.answer)):
            continue
        thought, found, answer = reply.rpartition(marker.answer)
        if not found:
            thought = reply
        for text in (marker.opening, marker.closing, marker.again):
            thought = thought.replace(text, "")
        return thought, answer if found else ""
    return None
