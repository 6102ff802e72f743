"""Which tokens a cache holds, which of them are there to stay, and where it was cut since somebody last looked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

UNTOUCHED = sys.maxsize


class CacheWatch:
    """Remembers the lowest position that a cache was cut to. Any thread may ask.

    Positions are only ever written behind the last token, so whatever lies below the lowest cut is as it was.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stands = UNTOUCHED

    def cut(self, n: int) -> None:
        """Tell that positions from n on may be written anew; called before they are."""
        with self._lock:
            self._stands = min(self._stands, n)

    def stands(self) -> int:
        """Below which position nothing was written anew since the last ``take``."""
        with self._lock:
            return self._stands

    def take(self) -> int:
        """Return the same, and count from now on."""
        with self._lock:
            stands, self._stands = self._stands, UNTOUCHED
            return stands


class CachedTokens:
    """The tokens of a session's cache. One thread changes them; any other may look.

    Attributes:
        ids: of all of them; appended to by whoever computed them, and cut by ``cut`` alone.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._watches: list[CacheWatch] = []
        self._n_settled: int | None = None

    def cut(self, n: int) -> None:
        """Forget all behind the first n."""
        for watch in self._watches:
            watch.cut(n)
        if self._n_settled is not None:
            self._n_settled = min(self._n_settled, n)
        del self.ids[n:]

    @property
    def n_settled(self) -> int:
        """How many tokens are there to stay."""
        n_settled = self._n_settled
        return len(self.ids) if n_settled is None else n_settled

    def settled(self) -> list[int]:
        """The tokens that are there to stay: without those that are only tried."""
        return self.ids[: self._n_settled]

    @contextmanager
    def trying(self) -> Iterator[None]:
        """What is appended inside is only tried."""
        before = self._n_settled
        self._n_settled = len(self.ids) if before is None else before
        try:
            yield
        finally:
            self._n_settled = before

    def watch(self) -> CacheWatch:
        """Begin to remember cuts, until ``unwatch``."""
        watch = CacheWatch()
        self._watches.append(watch)
        return watch

    def unwatch(self, watch: CacheWatch) -> None:
        """Remember no longer."""
        if watch in self._watches:
            self._watches.remove(watch)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
