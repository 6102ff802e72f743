"""Thinking blocks in a stream of text: where a model talks to itself before it answers.

A block is recognised at the start of a reply only, so that an answer may speak of the tags. Some
templates print the opening tag themselves; then the reply begins inside the block.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from app.text.record import record
from engine.prompt.thought_markers import (
    ANSWER_FRAMES,
    THOUGHT_MARKERS,
    ThoughtMarker,
    closed_by,
    opened_by,
)


@record
class Thinking:
    """Thinking before an answer, with its tokens and duration."""

    text: str = ""
    tokens: int = 0
    duration_s: float = 0.0
    is_closed: bool = False
    """False for a block that the reply ended within."""


@record
class ThoughtSplit:
    """Parts of a piece of text that belong to the thinking and to the answer."""

    thought: str = ""
    answer: str = ""


def tag_ids(control_texts: Mapping[str, int]) -> frozenset[int]:
    """Return the tags that a vocabulary has as control tokens, whose text a decoder would leave
    out."""
    return frozenset().union(*(marker.in_vocabulary(control_texts) for marker in THOUGHT_MARKERS))


def answer_start(text: str, opened: ThoughtMarker | None) -> int:
    """Return where in a reply's text, cleaned and with its tags, the answer begins, or else the
    newest thought."""
    splitter = ThinkingSplitter(opened)
    splitter.push(text)
    splitter.flush()
    return len(text) - splitter.part_chars


def is_opening_of(reply: str, opening: str, has_thought: bool) -> bool:
    """Whether a reply, its text with tags so far, may have been written after these last words of a
    prompt.

    ``opening`` may open a thought, or an empty one that leaves none; ``has_thought``: the reply was
    seen to think.
    """
    text = reply.lstrip()
    opened = opened_by(opening)
    if not text:
        return True
    if any(text.startswith(marker.opening) for marker in THOUGHT_MARKERS):
        return opened is None and closed_by(opening) is None
    if opened is not None:
        return has_thought or opened.closing in text
    return not has_thought


class _ReplyPart(Enum):
    """Which part of a reply its text has come to."""

    START = "start"
    THOUGHT = "thought"
    AFTER = "after"
    """Between a thought and what follows it."""
    ANSWER = "answer"


class ThinkingSplitter:
    """Tell thinking and answer apart, however the text is split; ``opened``: of a block that the
    prompt opened."""

    def __init__(self, opened: ThoughtMarker | None = None) -> None:
        self._opened = opened
        self._marker: ThoughtMarker | None = None
        self._where = _ReplyPart.START
        self._held = ""
        self._trims = False
        self._frame = ""
        """The tag that ends the answer; "" for none."""
        self.has_block = opened is not None
        """Whether there is a block, open or closed."""
        self.part_chars = 0
        """Characters of the newest part, the thought or the answer, with the tag that ends it."""

    @property
    def marker(self) -> ThoughtMarker | None:
        """The marker of the newest block, also of one that only the prompt has opened; None without
        a block."""
        return self._marker or self._opened

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends inside a block, or where another may follow."""
        return self.is_open or (
            self._where is _ReplyPart.AFTER and bool(self._marker and self._marker.next_part)
        )

    @property
    def is_open(self) -> bool:
        """Whether the text so far ends inside a block that was not closed."""
        return self._where is _ReplyPart.THOUGHT or (
            self._where is _ReplyPart.START and self._opened is not None
        )

    def push(self, text: str) -> ThoughtSplit:
        """Take the next piece; what may be the beginning of a tag is held back until that is
        decided."""
        self._held += text
        thought = ""
        answer = ""
        where = None
        while where is not self._where:
            where = self._where
            if where is _ReplyPart.START:
                self._begin()
            elif where is _ReplyPart.THOUGHT:
                thought += self._think()
            elif where is _ReplyPart.AFTER:
                self._go_on()
            else:
                answer += self._answer()
        return ThoughtSplit(thought, answer)

    def flush(self) -> ThoughtSplit:
        """The text is complete: return what was held back."""
        held = self._held
        self._held = ""
        if self._where is _ReplyPart.START and self._opened is not None:
            self._enter_thought(self._opened, "")
            held = held.lstrip()
        elif self._where is _ReplyPart.START:
            self._where = _ReplyPart.ANSWER
        elif self._where is _ReplyPart.AFTER:
            self._enter_answer("")
        self.part_chars += len(held)
        if self._where is _ReplyPart.THOUGHT:
            return ThoughtSplit(thought=held)
        if self._trims:
            held = held.lstrip()
        if self._frame and held.rstrip().endswith(self._frame):
            held = held.rstrip().removesuffix(self._frame).rstrip()
        return ThoughtSplit(answer=held)

    def _begin(self) -> None:
        """Find out how the reply begins, unless it could still be either."""
        text = self._held.lstrip()
        for marker in THOUGHT_MARKERS:
            if text.startswith(marker.opening):
                self._enter_thought(marker, text[len(marker.opening) :])
                return
            if marker.answer and text.startswith(marker.answer):
                self._enter_answer(text[len(marker.answer) :])
                return
        if any(beginning.startswith(text) for beginning in _BEGINNINGS):
            return
        if self._opened is not None:
            self._enter_thought(self._opened, text)
        else:
            self._where = _ReplyPart.ANSWER

    def _think(self) -> str:
        assert self._marker is not None
        self._held = self._trimmed(self._held)
        text, tag, rest = self._held.partition(self._marker.closing)
        if tag:
            self._where = _ReplyPart.AFTER
            self._held = rest
            return text
        keep = _overlap(text, self._marker.closing)
        self._held = text[len(text) - keep :]
        return self._counted(text[: len(text) - keep])

    def _go_on(self) -> None:
        """Find out what follows a thought, unless it could still be either."""
        assert self._marker is not None
        text = self._held.lstrip()
        again = self._marker.next_part
        more = again + self._marker.opening
        if again:
            frames = {again + self._marker.answer: ""}
        else:
            frames = ANSWER_FRAMES
        if again and text.startswith(more):
            self._enter_thought(self._marker, text[len(more) :])
            return
        for beginning, end in frames.items():
            if text.startswith(beginning):
                self._enter_answer(text[len(beginning) :], end)
                return
        if not any(
            beginning.startswith(text) for beginning in (*frames, *((more,) if again else ()))
        ):
            self._enter_answer(text)

    def _answer(self) -> str:
        text = self._trimmed(self._held)
        keep = 0
        if self._frame:
            at = text.rfind(self._frame)
            is_last = at >= 0 and not text[at + len(self._frame) :].strip()
            if is_last:
                end = at
            else:
                end = len(text) - _overlap(text, self._frame)
            keep = len(text) - len(text[:end].rstrip())
        self._held = text[len(text) - keep :]
        return self._counted(text[: len(text) - keep])

    def _enter_thought(self, marker: ThoughtMarker, text: str) -> None:
        self._marker = marker
        self._where = _ReplyPart.THOUGHT
        self._held = text
        self.has_block = self._trims = True
        self.part_chars = 0

    def _enter_answer(self, text: str, frame: str = "") -> None:
        self._where = _ReplyPart.ANSWER
        self._held = text
        self._frame = frame
        self._trims = True
        self.part_chars = 0

    def _counted(self, text: str) -> str:
        self.part_chars += len(text)
        return text

    def _trimmed(self, text: str) -> str:
        """Drop the white space that is between a tag and the text."""
        if self._trims:
            text = text.lstrip()
            self._trims = not text
        return text


_BEGINNINGS = tuple(
    text for marker in THOUGHT_MARKERS for text in (marker.opening, marker.answer) if text
)


def _overlap(text: str, tag: str) -> int:
    """Length of the longest end of text that is a beginning of the tag."""
    return next(
        (n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0
    )
