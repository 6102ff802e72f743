"""A bounded queue that serves its clients in turn."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class QueueFullError(Exception):
    """The queue has no room."""


class FairQueue(Generic[T]):
    """Queue that serves its clients in turn, and the entries of each client in order.

    Any thread may call its methods.

    Args:
        limit: largest number of entries.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._clients: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        with self._lock:
            return self._length()

    def put(self, client: str, entry: T, limit: int | None = None) -> None:
        """Add an entry after the earlier ones of its client.

        Raises QueueFullError: the queue has ``limit`` entries, or as many as it may ever have.
        """
        if limit is None:
            limit = self._limit
        with self._lock:
            if self._length() >= limit:
                raise QueueFullError
            self._clients.setdefault(client, deque()).append(entry)

    def put_fairly(self, client: str, entry: T) -> T | None:
        """Add an entry; if the queue is full, remove the last entry of the client with most.

        Returns:
            The entry that was removed; None if there was room.

        Raises:
            QueueFullError: the queue is full, and no client has clearly more entries than this one.
        """
        with self._lock:
            removed: T | None = None
            if self._length() >= self._limit:
                n_own = len(self._clients.get(client, ()))
                longest = max(self._clients.values(), key=len, default=deque[T]())
                if len(longest) < n_own + 2:
                    raise QueueFullError
                removed = longest.pop()
            self._clients.setdefault(client, deque()).append(entry)
            return removed

    def remove(self, entry: T) -> bool:
        """Remove an entry; return False if it is not in the queue."""
        with self._lock:
            for client, entries in self._clients.items():
                if entry in entries:
                    entries.remove(entry)
                    if not entries:
                        del self._clients[client]
                    return True
        return False

    def take(self) -> T | None:
        """Remove and return the next entry; None if the queue is empty."""
        with self._lock:
            if not self._clients:
                return None
            client, entries = self._clients.popitem(last=False)
            entry = entries.popleft()
            if entries:
                self._clients[client] = entries
            return entry

    def _length(self) -> int:
        return sum(map(len, self._clients.values()))
