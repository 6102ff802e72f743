"""The requests that wait for the engine: bounded, and fair to those who send few.

Peers take turns; what one peer has sent is answered in its order. Any thread may call.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class LineFullError(Exception):
    """The line has no place left."""


class WaitingLine(Generic[T]):
    """A queue that serves its peers in turn."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._peers: OrderedDict[str, deque[T]] = OrderedDict()
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def join(self, peer: str, item: T) -> None:
        """Wait behind what this peer has sent before. Raises LineFullError: too many wait."""
        with self._lock:
            if self._n >= self._most:
                raise LineFullError
            self._peers.setdefault(peer, deque()).append(item)
            self._n += 1

    def leave(self, item: T) -> bool:
        """Stop waiting; False where the item no longer waits."""
        with self._lock:
            for peer, items in self._peers.items():
                if item in items:
                    items.remove(item)
                    self._n -= 1
                    if not items:
                        del self._peers[peer]
                    return True
        return False

    def take(self) -> T | None:
        """Return whose turn it is, None where nobody waits; the peer goes behind the others."""
        with self._lock:
            if not self._peers:
                return None
            peer, items = self._peers.popitem(last=False)
            item = items.popleft()
            self._n -= 1
            if items:
                self._peers[peer] = items
            return item
