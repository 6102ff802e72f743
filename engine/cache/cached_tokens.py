"""Tokens in a cache: which of them are permanent, and how far the cache was cut."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engine.cache.picture_ids import PictureSpan, part_start, spans_in

UNCUT = sys.maxsize


class CacheWatch:
    """Records the lowest position that a cache was cut to. Any thread may use it.

    Keys and values are only written after the last token, so those below the lowest cut are
    unchanged.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lowest_cut = UNCUT

    def cut(self, n: int) -> None:
        """Record that positions from n on may be rewritten. Call it before they are."""
        with self._lock:
            self._lowest_cut = min(self._lowest_cut, n)

    def lowest_cut(self) -> int:
        """Return the position below which nothing was rewritten since ``take_lowest_cut``."""
        with self._lock:
            return self._lowest_cut

    def take_lowest_cut(self) -> int:
        """Return ``lowest_cut`` and start again."""
        with self._lock:
            lowest = self._lowest_cut
            self._lowest_cut = UNCUT
            return lowest


class CachedTokens:
    """Tokens of a session's cache. One thread changes them; any thread may read them.

    Attributes:
        ids: token ids, with those of the rows of pictures. Only ``append`` and ``cut`` change them.
        pictures: parts of pictures that are complete in the cache, in order.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.pictures: list[PictureSpan] = []
        self._watches: list[CacheWatch] = []
        self._n_permanent: int | None = None
        """Number of permanent tokens; None if all are."""
        self._n_exact: int | None = None
        """Number of tokens before the first moved span; None if there is none."""

    def append(self, ids: Sequence[int]) -> None:
        """Append computed tokens."""
        n = len(self.ids)
        self.ids += ids
        if ids and min(ids) < 0:
            self.pictures += spans_in(self.ids, part_start(self.ids, n))

    @property
    def position_offset(self) -> int:
        """Difference of the next token's position and its index: a picture may take fewer
        positions than it has rows (M-RoPE)."""
        n = len(self.ids)
        return self.n_positions(0, n) - n

    def n_positions(self, first: int, end: int) -> int:
        """Return the number of positions that the tokens of a range take."""
        n = end - first
        for span in self.pictures:
            if first <= span.first and span.end <= end:
                n += span.n_positions - (span.end - span.first)
        return n

    def cut(self, n: int) -> None:
        """Drop all tokens after the first n."""
        for watch in self._watches:
            watch.cut(n)
        if self._n_permanent is not None:
            self._n_permanent = min(self._n_permanent, n)
        if self._n_exact is not None and n <= self._n_exact:
            self._n_exact = None
        del self.ids[n:]
        while self.pictures and self.pictures[-1].end > n:
            self.pictures.pop()

    @property
    def n_exact(self) -> int:
        """Number of tokens whose keys and values were computed after just these tokens: those
        before the first moved span."""
        n_exact = self._n_exact
        if n_exact is None:
            return len(self.ids)
        return n_exact

    def append_moved(self, ids: Sequence[int]) -> None:
        """Append the tokens of a moved span."""
        if self._n_exact is None:
            self._n_exact = len(self.ids)
        self.append(ids)

    @property
    def n_permanent(self) -> int:
        """Number of permanent tokens before the first moved span."""
        n_permanent = self._n_permanent
        if n_permanent is None:
            return self.n_exact
        return min(n_permanent, self.n_exact)

    def permanent_ids(self) -> list[int]:
        """Return the ids of the permanent tokens before the first moved span."""
        return self.ids[: self.n_permanent]

    @contextmanager
    def temporary_tokens(self) -> Iterator[None]:
        """Make tokens that are appended inside the ``with`` block temporary."""
        outer = self._n_permanent
        if outer is None:
            self._n_permanent = len(self.ids)
        try:
            yield
        finally:
            self._n_permanent = outer

    def watch(self) -> CacheWatch:
        """Start recording cuts, until ``unwatch``."""
        watch = CacheWatch()
        self._watches.append(watch)
        return watch

    def unwatch(self, watch: CacheWatch) -> None:
        """Stop recording cuts; unknown watches are ignored."""
        if watch in self._watches:
            self._watches.remove(watch)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two sequences of token ids."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
