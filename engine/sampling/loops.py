"""Detection of replies that repeat themselves without end."""

from __future__ import annotations

import re
from collections.abc import Callable

SHORTEST = 4
"""Number of repeated tokens after which a period is considered."""
LONGEST_PERIOD = 512
"""Longest period, in tokens."""
COPIES = 3
MORE_TOKENS = 128
"""A loop has ``COPIES`` copies of its unit and this many tokens more.

Lists, tables and code repeat short lines more often than long ones: 5 copies of 28 tokens, 3 of 32
and of 104 were the most in 6 MB of them.
"""
MIN_POOR_TOKENS = 1024
"""Minimum of tokens in a loop whose unit has few different letters. Rules, zeros, blanks and
padding are long in sound text."""
FEW_LETTERS = 3
BETWEEN_WORDS = " \n\r\t,.!?"
"""Characters between words, such as "la, la". Bytes like "0xff, 0xff" have others."""
FIRST_EMOJI = 0x1F000
LONGEST = COPIES * LONGEST_PERIOD + MIN_POOR_TOKENS
MIN_LIKELY_TOKENS = 48
MAX_ITEM_BYTES = 4096
_ITEM = re.compile(rb"([0-9]{1,6})[.)]\s+(.+)", re.DOTALL)


class LoopWatch:
    """Finds the period with which the end of a text repeats, at a constant cost for each token.

    Attributes:
        period: number of tokens of the repeated unit; 0 if nothing repeats.
    """

    def __init__(self) -> None:
        self.period = 0
        self._n_repeated = 0
        self._tokens: list[int] = []
        self._positions: dict[tuple[int, ...], int] = {}
        """Position after the last occurrence of some tokens."""

    @property
    def n_tokens(self) -> int:
        """Number of tokens at the end that have the period, the first copy included."""
        if self.period:
            return self.period + self._n_repeated
        return 0

    @property
    def unit(self) -> list[int]:
        """Tokens of the repeated unit."""
        return self._tokens[len(self._tokens) - self.period :]

    @property
    def is_likely(self) -> bool:
        """Whether the text is in a loop or probably starts one."""
        return self.n_tokens >= max(2 * self.period, MIN_LIKELY_TOKENS)

    def append(self, token: int) -> None:
        """Append a token to the text."""
        tokens = self._tokens
        tokens.append(token)
        n = len(tokens)
        if self.period and tokens[n - 1 - self.period] == token:
            self._n_repeated += 1
        else:
            self.period = 0
            self._n_repeated = 0
        if n < SHORTEST:
            return

        key = tuple(tokens[-SHORTEST:])
        position = self._positions.get(key)
        self._positions[key] = n
        if not self.period and position is not None and n - position <= LONGEST_PERIOD:
            self.period = n - position
            # A longer text was found to be a loop before, so this ends.
            while self._n_repeated < LONGEST and self._repeats(self._n_repeated):
                self._n_repeated += 1

    def _repeats(self, n: int) -> bool:
        """Whether the token n before the last one equals the token one period earlier."""
        index = len(self._tokens) - 1 - n - self.period
        return index >= 0 and self._tokens[index] == self._tokens[index + self.period]


class CountedList:
    """Counts the items of a numbered list at the end of a text that say the same.

    Other numbered lines are ignored: rows of data may differ in their number alone.

    Attributes:
        n_items: number of equal items; 0 if the text does not end with a list.
        text: text of these items.
        n_tokens: number of tokens since the end of the first of them.
    """

    def __init__(self) -> None:
        self.n_items = 0
        self.n_tokens = 0
        self.text = b""
        self._number = 0
        self._line = b""

    def append(self, piece: bytes) -> bool:
        """Append the text of a token; returns whether an equal item ends with it."""
        self.n_tokens += 1
        *lines, self._line = (self._line + piece).split(b"\n")
        self._line = self._line[:MAX_ITEM_BYTES]  # a longer line ends the list
        n_before = self.n_items
        for line in filter(None, map(bytes.strip, lines)):
            self._end_line(line)
        return self.n_items > n_before > 0

    def _end_line(self, line: bytes) -> None:
        item = _ITEM.fullmatch(line) if len(line) < MAX_ITEM_BYTES else None
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
    """Decides when a reply must end because it repeats itself.

    Args:
        token_bytes: returns the bytes of a token's text.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._watch = LoopWatch()
        self._list = CountedList()
        self._token_bytes = token_bytes
        self._judged_period = 0
        self._is_poor_unit = False
        """Whether the unit of ``_judged_period`` has few different letters."""

    def append(self, token: int) -> int:
        """Append a token to the reply.

        Returns:
            Number of tokens at the end of the reply that are copies to leave out; 0 if there is no
            loop.
        """
        watch = self._watch
        watch.append(token)
        if self._list.append(self._token_bytes(token)) and self._is_endless_list:
            return self._list.n_tokens

        period = watch.period
        n = watch.n_tokens
        if not period or n < COPIES * period + MORE_TOKENS:
            return 0
        if self._judged_period != period:
            self._judged_period = period
            # Twice the unit, since it may begin inside a character.
            self._is_poor_unit = _is_poor(b"".join(map(self._token_bytes, watch.unit * 2)))
        if self._is_poor_unit and n < MIN_POOR_TOKENS:
            return 0
        return n - period

    @property
    def _is_endless_list(self) -> bool:
        items = self._list
        n_tokens = items.n_tokens * items.n_items // (items.n_items - 1)
        if _is_poor(items.text):
            return n_tokens >= MIN_POOR_TOKENS
        return n_tokens >= n_tokens * COPIES // items.n_items + MORE_TOKENS


def _is_poor(unit: bytes) -> bool:
    """Whether a text has no emoji, few different letters, and is not a word of two of them."""
    text = unit.decode("utf-8", "replace")
    letters = set(filter(str.isalpha, text))
    if max(map(ord, text), default=0) >= FIRST_EMOJI or len(letters) >= FEW_LETTERS:
        return False
    return len(letters) < 2 or not set(text) <= letters.union(BETWEEN_WORDS)
