"""Places where a text occurs in the messages of a conversation, and the place that is shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from app.conversations.conversation import ChatMessage
from app.text.record import record

MOST_PLACES = 10_000
"""Limit on places, so that a single letter in a long conversation stays cheap."""


def pattern_of(text: str) -> re.Pattern[str] | None:
    """Return the pattern of a text, ignoring case; None for blank text.

    A space also matches a line break or several spaces, since the screen wraps lines.
    """
    words = text.split()
    if not words:
        return None
    return re.compile(r"\s+".join(map(re.escape, words)), re.IGNORECASE)


def spans_in(text: str, pattern: re.Pattern[str] | None) -> list[tuple[int, int]]:
    """Return start and end of each match in a text, in characters."""
    if pattern is None:
        return []
    return [match.span() for match in pattern.finditer(text)]


@record
class FoundPlace:
    """An occurrence of the text."""

    index: int
    """Index of the message in the conversation."""
    number: int
    """Number of earlier occurrences in the same message."""


class TextSearch:
    """Search for a text in messages.

    Attributes:
        text: the text, as typed.
        pattern: pattern of the text; None if it is blank.
        places: places of the text, oldest message first.
        position: index of the place that is shown.
    """

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self._messages = messages
        self.text = ""
        self.pattern: re.Pattern[str] | None = None
        self.places: list[FoundPlace] = []
        self.position = 0

    def search(self, text: str, first_index: int) -> None:
        """Search for a text; show its first place from a message on, or else its last place."""
        self.text = text
        self.pattern = pattern_of(text)
        self.places = []
        for index, message in enumerate(self._messages):
            n_places = len(spans_in(message.text, self.pattern)) + self._n_in_thinking(message)
            self.places += [FoundPlace(index, number) for number in range(n_places)]
            if len(self.places) >= MOST_PLACES:
                break
        later = (n for n, place in enumerate(self.places) if place.index >= first_index)
        self.position = next(later, len(self.places) - 1)

    def _n_in_thinking(self, message: ChatMessage) -> int:
        if message.thinking is None:
            return 0
        return len(spans_in(message.thinking.text, self.pattern))

    def step(self, n_places: int) -> None:
        """Go to a later place, or to an earlier one if negative; after the last comes the first."""
        if self.places:
            self.position = (self.position + n_places) % len(self.places)

    @property
    def place(self) -> FoundPlace | None:
        """The place that is shown; None if there is none."""
        return self.places[self.position] if self.places else None

    @property
    def message(self) -> ChatMessage | None:
        """The message of the place that is shown; None if there is none."""
        return self._messages[self.place.index] if self.place is not None else None

    @property
    def count_line(self) -> str:
        """Number of the shown place and of all places; empty while nothing is typed."""
        if self.pattern is None:
            return ""
        if not self.places:
            return "not found"
        more = "+" if len(self.places) >= MOST_PLACES else ""
        return f"{self.position + 1} of {len(self.places)}{more}"
