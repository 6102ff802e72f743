"""Tokens of earlier conversations, ordered by what comes before each place, so that the longest
match is found.

A suffix array of the reversed text, as deep as ``DEPTH``: that is as much as tells one place from
the next.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

DEPTH = 9
SHORTEST = 3
"""Tokens that must have been written before; as many are one key of the order."""
_TOKEN_BITS = 21


class EarlierText:
    """Texts to find matches in.

    Args:
        texts: token ids of each, the oldest first.
        vocab_size: ids from there on, or negative ones, match nothing and are never proposed.
    """

    def __init__(self, texts: Sequence[Sequence[int] | np.ndarray], vocab_size: int) -> None:
        """Sort; about a microsecond and 20 bytes for each token."""
        apart = np.zeros(
            1, np.int64
        )  # between texts, and after the last: what matches never crosses it
        ids = [part for one in texts for part in (apart, np.asarray(one, np.int64) + 1)]
        backwards = np.concatenate([apart, *ids])[::-1]
        backwards[(backwards < 0) | (backwards > min(vocab_size, (1 << _TOKEN_BITS) - 1))] = 0
        n = len(backwards)
        padded = np.concatenate([backwards, np.zeros(DEPTH, np.int64)])
        keys = [
            self._key(padded[at : at + n + SHORTEST - 1], n) for at in range(0, DEPTH, SHORTEST)
        ]
        order = np.lexsort(keys[::-1])
        self._keys = keys[0][order].data
        self._order = order.astype(np.int32).data
        self._text = padded.astype(np.int32).data

    @staticmethod
    def _key(tokens: np.ndarray, n: int) -> np.ndarray:
        key: np.ndarray = (
            (tokens[:n] << 2 * _TOKEN_BITS) | (tokens[1 : n + 1] << _TOKEN_BITS) | tokens[2 : n + 2]
        )
        return key

    def following(self, tokens: Sequence[int], most: int) -> tuple[int, list[int]]:
        """Return how many of the last tokens were written before, and up to ``most`` that followed
        them there.

        Of several matches of ``DEPTH`` the youngest counts. Fewer than ``SHORTEST`` are no match: 0
        and none.
        """
        wanted = [token + 1 for token in tokens[: -DEPTH - 1 : -1]]
        if len(wanted) < SHORTEST:
            return 0, []
        key = (wanted[0] << 2 * _TOKEN_BITS) | (wanted[1] << _TOKEN_BITS) | wanted[2]
        first = bisect_left(self._keys, key)
        end = bisect_right(self._keys, key, first)
        text = self._text
        order = self._order
        at = bisect_left(
            order, wanted, first, end, key=lambda place: text[place : place + len(wanted)].tolist()
        )
        length = 0
        place = 0
        for one in order[max(first, at - 1) : min(end, at + 1)]:
            shared = next(
                (n for n, token in enumerate(wanted) if text[one + n] != token), len(wanted)
            )
            if shared >= length:
                length = shared
                place = one
        if length:
            follow = text[max(0, place - most) : place][::-1].tolist()
        else:
            follow = []
        if 0 in follow:
            apart = follow.index(0)
        else:
            apart = len(follow)
        if apart:
            return (length, [token - 1 for token in follow[:apart]])
        return (0, [])
