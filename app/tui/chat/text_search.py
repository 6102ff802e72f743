"""Places where a text occurs in the messages of a conversation, and the place that is shown."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from app.conversations.conversation import ChatMessage
from app.documents.pictures import with_short_references
from app.text.record import record


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
        position: index of the place that is shown, among all places, oldest message first.
    """

    def __init__(self, messages: Sequence[ChatMessage]) -> None:
        self._messages = messages
        self._lower_texts: dict[int, str] = {}
        """Texts of messages that have been searched in small letters, by index."""
        self._indices: list[int] = []
        """Indices of the messages that have the text."""
        self._ends: list[int] = []
        """Numbers of places up to the end of each of these messages."""
        self.text = ""
        self.pattern: re.Pattern[str] | None = None
        self.position = 0

    @property
    def n_places(self) -> int:
        """Number of places."""
        if not self._ends:
            return 0
        return self._ends[-1]

    @property
    def places(self) -> list[FoundPlace]:
        """All places."""
        return [self._place_at(position) for position in range(self.n_places)]

    def search(self, text: str, first_index: int) -> None:
        """Search for a text; show its first place from a message on, or else its last place."""
        indices: Sequence[int] = range(len(self._messages))
        if self.text and text.startswith(self.text):
            indices = self._indices
        self.text = text
        self.pattern = pattern_of(text)
        counts = [(index, self._n_in(index)) for index in indices]
        counts = [(index, n_places) for index, n_places in counts if n_places]
        self._indices = [index for index, _ in counts]
        self._ends = list(accumulate(n_places for _, n_places in counts))
        n_earlier = sum(n_places for index, n_places in counts if index < first_index)
        self.position = max(0, min(n_earlier, self.n_places - 1))

    def _n_in(self, index: int) -> int:
        """Return the number of places in a message."""
        if self.pattern is None:
            return 0
        lower_text = self._lower_texts.get(index)
        if lower_text is None:
            lower_text = self._texts_of(index).lower()
            self._lower_texts[index] = lower_text
        words = self.text.lower().split()
        # Letters outside ASCII may change their number in small letters.
        is_plain = lower_text.isascii() and self.text.isascii()
        if is_plain and not all(word in lower_text for word in words):
            return 0
        if is_plain and len(words) == 1:
            return lower_text.count(words[0])
        return len(spans_in(self._texts_of(index), self.pattern))

    def _texts_of(self, index: int) -> str:
        """Return the text and the thinking of a message, in which no place reaches over both."""
        message = self._messages[index]
        if message.thinking is None:
            return with_short_references(message.text)
        return f"{message.thinking.text}\0{message.text}"

    def step(self, n_places: int) -> None:
        """Go to a later place, or to an earlier one if negative; after the last comes the first."""
        if self.n_places:
            self.position = (self.position + n_places) % self.n_places

    def _place_at(self, position: int) -> FoundPlace:
        n = bisect_right(self._ends, position)
        n_before = self._ends[n - 1] if n else 0
        return FoundPlace(self._indices[n], position - n_before)

    @property
    def place(self) -> FoundPlace | None:
        """The place that is shown; None if there is none."""
        if not self.n_places:
            return None
        return self._place_at(self.position)

    @property
    def message(self) -> ChatMessage | None:
        """The message of the place that is shown; None if there is none."""
        return self._messages[self.place.index] if self.place is not None else None

    @property
    def count_line(self) -> str:
        """Number of the shown place and of all places; empty while nothing is typed."""
        if self.pattern is None:
            return ""
        if not self.n_places:
            return "not found"
        return f"{self.position + 1} of {self.n_places}"
