"""Search for the longest match of the last tokens in earlier conversations.

It is a suffix array of the reversed texts, sorted by the last ``DEPTH`` tokens before each
position.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

DEPTH = 9
"""Tokens of the longest match; more do not predict better."""
SHORTEST = 3
"""Tokens of the shortest match. A sort key holds as many."""
_TOKEN_BITS = 21


class EarlierText:
    """Texts to search for matches.

    Args:
        texts: token ids of each text, the oldest first.
        vocab_size: ids from there on, and negative ones, never match.
    """

    def __init__(self, texts: Sequence[Sequence[int] | np.ndarray], vocab_size: int) -> None:
        """Sort the texts, in about a microsecond and 20 bytes for each token."""
        # A zero separates the texts; no match crosses it.
        separator = np.zeros(1, np.int64)
        ids = [piece for text in texts for piece in (separator, np.asarray(text, np.int64) + 1)]
        reversed_ids = np.concatenate([separator, *ids])[::-1]
        max_id = min(vocab_size, (1 << _TOKEN_BITS) - 1)
        reversed_ids[(reversed_ids < 0) | (reversed_ids > max_id)] = 0
        n = len(reversed_ids)
        padded = np.concatenate([reversed_ids, np.zeros(DEPTH, np.int64)])
        keys = [
            self._sort_keys(padded[offset : offset + n + SHORTEST - 1], n)
            for offset in range(0, DEPTH, SHORTEST)
        ]
        order = np.lexsort(keys[::-1])
        self._keys = keys[0][order].data
        self._order = order.astype(np.int32).data
        self._text = padded.astype(np.int32).data

    @staticmethod
    def _sort_keys(tokens: np.ndarray, n: int) -> np.ndarray:
        keys: np.ndarray = (
            (tokens[:n] << 2 * _TOKEN_BITS) | (tokens[1 : n + 1] << _TOKEN_BITS) | tokens[2 : n + 2]
        )
        return keys

    def following(self, tokens: Sequence[int], limit: int) -> tuple[int, list[int]]:
        """Find the longest match of the last tokens.

        The newest of several matches of ``DEPTH`` tokens counts.

        Returns:
            Length of the match, and up to ``limit`` tokens that followed it; (0, []) if it is
            shorter than ``SHORTEST``.
        """
        query = [token + 1 for token in tokens[: -DEPTH - 1 : -1]]
        if len(query) < SHORTEST:
            return 0, []
        length, position = self._longest_match(query)
        if not length:
            return 0, []
        followers = self._text[max(0, position - limit) : position][::-1].tolist()
        if 0 in followers:
            del followers[followers.index(0) :]
        if not followers:
            return 0, []
        return length, [token - 1 for token in followers]

    def _longest_match(self, query: list[int]) -> tuple[int, int]:
        """Return the length and the position of the longest match in the reversed text."""
        key = (query[0] << 2 * _TOKEN_BITS) | (query[1] << _TOKEN_BITS) | query[2]
        first = bisect_left(self._keys, key)
        end = bisect_right(self._keys, key, first)
        text = self._text
        index = bisect_left(
            self._order,
            query,
            first,
            end,
            key=lambda position: text[position : position + len(query)].tolist(),
        )

        # The longest match is next to the place where the query would be inserted.
        best_length = 0
        best_position = 0
        for position in self._order[max(first, index - 1) : min(end, index + 1)]:
            mismatches = (n for n, token in enumerate(query) if text[position + n] != token)
            length = next(mismatches, len(query))
            if length >= best_length:
                best_length = length
                best_position = position
        return best_length, best_position
