"""Thinking blocks in a stream of text: where a model talks to itself before it answers.

A block is recognised at the start of a reply only, so that an answer may speak of the tags. Some templates print the
opening tag themselves; then the reply begins inside the block. Knows no screen and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.text.record import record

TAGS = {
    "<think>": "</think>",
    "<thinking>": "</thinking>",
    "<thought>": "</thought>",
    "<reasoning>": "</reasoning>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|START_THINKING|>": "<|END_THINKING|>",
}
"""Opening and closing tags of the models in use."""


@record
class Thinking:
    """Thinking before an answer, with its tokens and duration."""

    text: str = ""
    tokens: int = 0
    duration_s: float = 0.0
    is_closed: bool = False
    """False for a block that the reply ended within."""

    def with_text(self, text: str) -> Thinking:
        """Return the same figures with another text."""
        return replace(self, text=text)


@record
class Split:
    """Parts of a piece of text that belong to the thinking and to the answer."""

    thought: str = ""
    answer: str = ""


def tag_ids(control_texts: Mapping[str, int]) -> frozenset[int]:
    """Return the tags that a vocabulary has as control tokens, whose text a decoder would leave out.

    Args:
        control_texts: spelling to id of the vocabulary's control tokens.
    """
    return frozenset(control_texts[tag] for pair in TAGS.items() for tag in pair if tag in control_texts)


def answer_start(text: str, closing: str | None) -> int:
    """Return where in a reply's text the answer begins; where there is only thinking so far, the thinking.

    Args:
        text: the whole reply, cleaned, with its tags.
        closing: the tag that ends the block which the prompt has opened already, or None.
    """
    splitter = ThinkingSplitter(closing)
    pieces = splitter.push(text), splitter.flush()
    shown = "".join(piece.thought if splitter.is_thinking else piece.answer for piece in pieces)
    return len(text) - len(shown)


def opened_by(opening: str) -> str | None:
    """Return the tag that ends the block which a prompt's last words open; None if they open none."""
    opening = opening.rstrip()
    return next((closing for tag, closing in TAGS.items() if opening.endswith(tag)), None)


class ThinkingSplitter:
    """Tell thinking and answer apart; the pieces joined are the same however the text was split.

    Args:
        closing: the tag that ends the block which the prompt has opened already, or None.
    """

    def __init__(self, closing: str | None = None) -> None:
        self._closing = closing
        self._held = ""
        self._is_start = True
        self._trims = False
        self.has_block = closing is not None
        """Whether there is a block, open or closed."""

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends inside a block."""
        return self._closing is not None

    def push(self, text: str) -> Split:
        """Take the next piece; what may be the beginning of a tag is held back until that is decided."""
        if self._is_start:
            text, self._held = self._held + text, ""
            if not self._begin(text):
                self._held = text
                return Split()
            text, self._held = self._held, ""
        if self._closing is None:
            return Split(answer=self._trimmed(text))
        return self._think(text)

    def flush(self) -> Split:
        """The text is complete: return what was held back."""
        held, self._held = self._held, ""
        if self.is_thinking:
            return Split(thought=held.lstrip() if self._is_start else held)
        return Split(answer=held)

    def _begin(self, text: str) -> bool:
        """Find out how the reply begins; False while it could still be either. Leaves the rest in ``_held``."""
        stripped = text.lstrip()
        opening = next((tag for tag in TAGS if stripped.startswith(tag)), None)
        if opening is None and any(tag.startswith(stripped) for tag in TAGS):
            return False
        self._is_start = False
        if opening is not None:
            self._closing, text = TAGS[opening], stripped[len(opening) :]
        elif self._closing is not None:
            text = stripped
        self._trims = self.has_block = self.is_thinking
        self._held = text
        return True

    def _think(self, text: str) -> Split:
        assert self._closing is not None
        text = self._trimmed(self._held + text)
        self._held = ""
        thought, tag, answer = text.partition(self._closing)
        if tag:
            self._closing, self._trims = None, True
            return Split(thought, self._trimmed(answer))
        keep = _overlap(text, self._closing)
        self._held = text[len(text) - keep :]
        return Split(thought=text[: len(text) - keep])

    def _trimmed(self, text: str) -> str:
        """Drop the white space that stands between a tag and the text."""
        if self._trims:
            text = text.lstrip()
            self._trims = not text
        return text


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of text that is a beginning of the tag."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)
