"""Thinking blocks in a reply: text that a model writes for itself before it answers.

A block is recognized only at the beginning of a reply, so an answer may mention the tags. Some chat
templates print the opening tag; then the reply begins inside the block.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from app.text.record import record
from engine.prompt.thinking import (
    ANSWER_FRAMES,
    THOUGHT_MARKERS,
    ThoughtMarker,
    closed_by,
    opened_by,
)


@record
class Thinking:
    """Thinking before an answer."""

    text: str = ""
    tokens: int = 0
    duration_s: float = 0.0
    is_closed: bool = False
    """Whether the block has ended; False if the reply ends inside it."""


@record
class ThoughtSplit:
    """A piece of text, split into thought and answer."""

    thought: str = ""
    answer: str = ""


def tag_ids(control_texts: Mapping[str, int]) -> frozenset[int]:
    """Return the ids of tags that are control tokens in a vocabulary. A decoder would leave out
    their text."""
    return frozenset().union(*(marker.in_vocabulary(control_texts) for marker in THOUGHT_MARKERS))


def answer_start(text: str, opened: ThoughtMarker | None) -> int:
    """Return the position of the answer in a reply; without an answer, of the newest thought.

    Args:
        text: Clean text of the reply with its tags.
        opened: Marker of a block that the prompt has opened.
    """
    splitter = ThinkingSplitter(opened)
    splitter.push(text)
    splitter.flush()
    return len(text) - splitter.section_chars


def is_opening_of(reply: str, opening: str, has_thought: bool) -> bool:
    """Whether a reply may have been written after the end of a prompt.

    Args:
        reply: Text of the reply so far, with its tags.
        opening: Last words of the prompt. They may open a block, or an empty one without a thought.
        has_thought: Whether the reply is known to have a thought.
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


class _Section(Enum):
    """Section of a reply."""

    START = "start"
    """Beginning of the reply, before it is clear whether it starts with a thought."""
    THOUGHT = "thought"
    AFTER_THOUGHT = "after thought"
    """Text between a thought and the answer or another thought."""
    ANSWER = "answer"


class ThinkingSplitter:
    """Splits the stream of a reply into thought and answer, however the stream is cut.

    Args:
        opened: Marker of a block that the prompt has opened; None for none.

    Attributes:
        has_block: Whether the reply has a block, open or closed.
        section_chars: Number of characters of the newest thought or answer, with the tag that ends
            it.
    """

    def __init__(self, opened: ThoughtMarker | None = None) -> None:
        self._opened = opened
        self._marker: ThoughtMarker | None = None
        self._section = _Section.START
        self._held = ""
        """Text that may be the beginning of a tag."""
        self._trims = False
        """Whether white space at the beginning of the section is dropped."""
        self._frame = ""
        """Tag that ends the answer; "" for none."""
        self.has_block = opened is not None
        self.section_chars = 0

    @property
    def marker(self) -> ThoughtMarker | None:
        """Marker of the newest block, or of a block that the prompt has opened; None without a
        block."""
        return self._marker or self._opened

    @property
    def is_thinking(self) -> bool:
        """Whether the text so far ends inside a block, or where another block may follow."""
        if self.is_open:
            return True
        may_think_again = self._marker is not None and bool(self._marker.next_part)
        return self._section is _Section.AFTER_THOUGHT and may_think_again

    @property
    def is_open(self) -> bool:
        """Whether the text so far ends inside a block."""
        if self._section is _Section.START:
            return self._opened is not None
        return self._section is _Section.THOUGHT

    def push(self, text: str) -> ThoughtSplit:
        """Add text, and return the text whose section is clear."""
        self._held += text
        thought = ""
        answer = ""
        previous_section = None
        while previous_section is not self._section:
            previous_section = self._section
            match self._section:
                case _Section.START:
                    self._find_first_section()
                case _Section.THOUGHT:
                    thought += self._take_thought()
                case _Section.AFTER_THOUGHT:
                    self._find_next_section()
                case _Section.ANSWER:
                    answer += self._take_answer()
        return ThoughtSplit(thought, answer)

    def flush(self) -> ThoughtSplit:
        """Return the text that was held back; the reply is complete."""
        held = self._held
        self._held = ""
        if self._section is _Section.START and self._opened is not None:
            self._enter_thought(self._opened, "")
            held = held.lstrip()
        elif self._section is _Section.START:
            self._section = _Section.ANSWER
        elif self._section is _Section.AFTER_THOUGHT:
            self._enter_answer("")

        self.section_chars += len(held)
        if self._section is _Section.THOUGHT:
            return ThoughtSplit(thought=held)
        if self._trims:
            held = held.lstrip()
        if self._frame and held.rstrip().endswith(self._frame):
            held = held.rstrip().removesuffix(self._frame).rstrip()
        return ThoughtSplit(answer=held)

    def _find_first_section(self) -> None:
        """Enter the first section, unless more text is needed to decide."""
        text = self._held.lstrip()
        for marker in THOUGHT_MARKERS:
            if text.startswith(marker.opening):
                self._enter_thought(marker, text[len(marker.opening) :])
                return
            if marker.answer and text.startswith(marker.answer):
                self._enter_answer(text[len(marker.answer) :])
                return
        if any(tag.startswith(text) for tag in _FIRST_TAGS):
            return
        if self._opened is not None:
            self._enter_thought(self._opened, text)
        else:
            self._section = _Section.ANSWER

    def _take_thought(self) -> str:
        assert self._marker is not None
        self._held = self._trimmed(self._held)
        text, tag, rest = self._held.partition(self._marker.closing)
        if tag:
            self._section = _Section.AFTER_THOUGHT
            self._held = rest
            return text
        return self._take(self._held, _overlap(text, self._marker.closing))

    def _find_next_section(self) -> None:
        """Enter the section after a thought, unless more text is needed to decide."""
        assert self._marker is not None
        text = self._held.lstrip()
        again = self._marker.next_part
        tags: list[str] = []
        if again:
            thought_tag = again + self._marker.opening
            if text.startswith(thought_tag):
                self._enter_thought(self._marker, text[len(thought_tag) :])
                return
            tags.append(thought_tag)
            frames = {again + self._marker.answer: ""}
        else:
            frames = ANSWER_FRAMES

        for tag, end_tag in frames.items():
            if text.startswith(tag):
                self._enter_answer(text[len(tag) :], end_tag)
                return
            tags.append(tag)
        if not any(tag.startswith(text) for tag in tags):
            self._enter_answer(text)

    def _take_answer(self) -> str:
        text = self._trimmed(self._held)
        n_held = 0
        if self._frame:
            frame_start = text.rfind(self._frame)
            is_last = frame_start >= 0 and not text[frame_start + len(self._frame) :].strip()
            if is_last:
                end = frame_start
            else:
                end = len(text) - _overlap(text, self._frame)
            n_held = len(text) - len(text[:end].rstrip())
        return self._take(text, n_held)

    def _take(self, text: str, n_held: int) -> str:
        """Return a text without its last characters, which are held back."""
        end = len(text) - n_held
        self._held = text[end:]
        self.section_chars += end
        return text[:end]

    def _enter_thought(self, marker: ThoughtMarker, text: str) -> None:
        self._marker = marker
        self._section = _Section.THOUGHT
        self._held = text
        self.has_block = True
        self._trims = True
        self.section_chars = 0

    def _enter_answer(self, text: str, frame: str = "") -> None:
        self._section = _Section.ANSWER
        self._held = text
        self._frame = frame
        self._trims = True
        self.section_chars = 0

    def _trimmed(self, text: str) -> str:
        """Drop the white space between a tag and the text."""
        if self._trims:
            text = text.lstrip()
            self._trims = not text
        return text


_FIRST_TAGS = tuple(
    tag for marker in THOUGHT_MARKERS for tag in (marker.opening, marker.answer) if tag
)
"""Tags that a reply may begin with."""


def _overlap(text: str, tag: str) -> int:
    """Return the length of the longest end of a text that is the beginning of a tag."""
    for n_chars in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:n_chars]):
            return n_chars
    return 0
