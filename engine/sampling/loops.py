"""Tells a reply that repeats itself without end from text that only has repetition in it."""

from __future__ import annotations

import re
from collections.abc import Callable

SHORTEST = 4
"""Tokens that must have been written before, for a period to be looked at."""
FARTHEST = 512
"""The longest period that is looked at, in tokens."""
COPIES = 3
MORE_TOKENS = 128
"""A loop has so many copies and so many tokens more. Lists, tables and code have more copies of a
short line than of a long one: 5 of 28 tokens, 3 of 32 and of 104 were the most in 6 MB of them."""
LEAST_POOR_TOKENS = 1024
"""Tokens of a loop whose unit has few different letters: rules, zeros, blanks and padding are long
in sound text."""
FEW_LETTERS = 3
FIRST_EMOJI = 0x1F000
LONGEST = COPIES * FARTHEST + LEAST_POOR_TOKENS
LEAST_UNGUESSED_TOKENS = 48
MOST_ITEM_BYTES = 4096
_ITEM = re.compile(rb"([0-9]{1,6})[.)]\s+(.+)", re.DOTALL)


class LoopWatch:
    """Follows the tokens of a text, and knows the period with which its end repeats. A constant
    cost for each token.

    Attributes:
        period: tokens of the unit that is repeated; 0 for none.
    """

    def __init__(self) -> None:
        self.period = 0
        self._repeated = 0
        self._tokens: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}

    @property
    def n_tokens(self) -> int:
        """Tokens of the end that have the period, the first copy included."""
        if self.period:
            return self.period + self._repeated
        return 0

    @property
    def unit(self) -> list[int]:
        """The tokens that are repeated."""
        return self._tokens[len(self._tokens) - self.period :]

    @property
    def is_likely(self) -> bool:
        """Whether the text is in a loop, or will soon turn out to be: nothing should make it come
        faster."""
        return self.n_tokens >= max(2 * self.period, LEAST_UNGUESSED_TOKENS)

    def note(self, token: int) -> None:
        """The text has another token."""
        tokens = self._tokens
        tokens.append(token)
        n = len(tokens)
        if self.period and tokens[n - 1 - self.period] == token:
            self._repeated += 1
        else:
            self.period = self._repeated = 0
        if n < SHORTEST:
            return
        key = tuple(tokens[-SHORTEST:])
        place = self._places.get(key)
        self._places[key] = n
        if not self.period and place is not None and n - place <= FARTHEST:
            self.period = n - place
            # Any text that is longer was a loop already, so that this ends.
            while self._repeated < LONGEST and self._reaches_back(self._repeated):
                self._repeated += 1

    def _reaches_back(self, n: int) -> bool:
        at = len(self._tokens) - 1 - n - self.period
        return at >= 0 and self._tokens[at] == self._tokens[at + self.period]


class CountedList:
    """Follows the lines of a text, and knows how many items of a numbered list at its end say the
    same.

    No other lines that count are looked at: data may have hundreds of rows that differ in their
    number alone.

    Attributes:
        n_items: of the list that say the same; 0 for no list.
        text: what they say.
        n_tokens: tokens since the end of the first of them.
    """

    def __init__(self) -> None:
        self.n_items = self.n_tokens = 0
        self.text = b""
        self._number = 0
        self._line = b""

    def note(self, piece: bytes) -> bool:
        """The text has another token; returns whether an item ends with it."""
        self.n_tokens += 1
        *lines, self._line = (self._line + piece).split(b"\n")
        self._line = self._line[:MOST_ITEM_BYTES]  # a longer one ends the list
        before = self.n_items
        for line in filter(None, map(bytes.strip, lines)):
            self._end(line)
        return self.n_items > before > 0

    def _end(self, line: bytes) -> None:
        if len(line) < MOST_ITEM_BYTES:
            item = _ITEM.fullmatch(line)
        else:
            item = None
        if item is None:
            self.n_items = 0
            return
        number = int(item[1])
        text = item[2]
        if self.n_items and (number, text) == (self._number + 1, self.text):
            self.n_items += 1
        else:
            self.n_items = 1
            self.n_tokens = 0
            self.text = text
        self._number = number


class LoopGuard:
    """Says when a reply is to end since it repeats itself; ``piece``: the bytes of a token's
    text."""

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._watch = LoopWatch()
        self._list = CountedList()
        self._piece = piece
        self._judged = 0, False
        """A period, and whether its unit has few letters."""

    def note(self, token: int) -> int:
        """The reply has another token; returns how many of its last ones are copies to leave out, 0
        for no loop."""
        watch = self._watch
        watch.note(token)
        if self._list.note(self._piece(token)) and self._is_endless_list:
            return self._list.n_tokens
        period = watch.period
        n = watch.n_tokens
        if not period or n < COPIES * period + MORE_TOKENS:
            return 0
        if self._judged[0] != period:
            self._judged = (
                period,
                _is_poor(b"".join(map(self._piece, watch.unit * 2))),
            )  # it may begin in a character
        if self._judged[1] and n < LEAST_POOR_TOKENS:
            return 0
        return n - period

    @property
    def _is_endless_list(self) -> bool:
        items = self._list
        n_tokens = items.n_tokens * items.n_items // (items.n_items - 1)
        least = n_tokens * COPIES // items.n_items + MORE_TOKENS
        return n_tokens >= (LEAST_POOR_TOKENS if _is_poor(items.text) else least)


def _is_poor(unit: bytes) -> bool:
    text = unit.decode("utf-8", "replace")
    return (
        max(map(ord, text), default=0) < FIRST_EMOJI
        and len(set(filter(str.isalpha, text))) < FEW_LETTERS
    )
