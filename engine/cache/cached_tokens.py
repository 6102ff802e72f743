"""The tokens in a cache: which of them are permanent, and the lowest position that was cut since
the last check."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

UNTOUCHED = sys.maxsize


class CacheWatch:
    """Records the lowest position that a cache was cut to. Any thread may use it.

    Positions are only written after the last token, so positions below the lowest cut are
    unchanged.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stands = UNTOUCHED

    def cut(self, n: int) -> None:
        """Record that positions from n on may be rewritten; called before they are."""
        with self._lock:
            self._stands = min(self._stands, n)

    def stands(self) -> int:
        """Return the position below which nothing was rewritten since the last ``take``."""
        with self._lock:
            return self._stands

    def take(self) -> int:
        """Return the same as ``stands``, and reset."""
        with self._lock:
            stands = self._stands
            self._stands = UNTOUCHED
            return stands


class CachedTokens:
    """The tokens of a session's cache. One thread changes them; any thread may read.

    Attributes:
        ids: token ids; computed tokens are appended directly, only ``cut`` removes any.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._watches: list[CacheWatch] = []
        self._n_settled: int | None = None

    def cut(self, n: int) -> None:
        """Drop all tokens after the first n."""
        for watch in self._watches:
            watch.cut(n)
        if self._n_settled is not None:
            self._n_settled = min(self._n_settled, n)
        del self.ids[n:]

    @property
    def n_settled(self) -> int:
        """Number of permanent tokens."""
        n_settled = self._n_settled
        if n_settled is None:
            return len(self.ids)
        return n_settled

    def settled(self) -> list[int]:
        """Return the ids of the permanent tokens, without those of ``trying``."""
        return self.ids[: self._n_settled]

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Tokens appended inside are temporary."""
        before = self._n_settled
        if before is None:
            self._n_settled = len(self.ids)
        else:
            self._n_settled = before
        try:
            yield
        finally:
            self._n_settled = before

    def watch(self) -> CacheWatch:
        """Start recording cuts, until ``unwatch``."""
        watch = CacheWatch()
        self._watches.append(watch)
        return watch

    def unwatch(self, watch: CacheWatch) -> None:
        """Stop recording; unknown watches are ignored."""
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
