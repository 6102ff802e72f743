"""How messages reach a server of tools and come back: what a pipe and an address have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

Messages = list[dict[str, Any]]

LOOK_S = 0.1
"""A stop is seen this often."""


class Fault(Exception):
    """What a server does wrong, as the end of a sentence."""


class RequestRefused(Fault):
    """The server did not do what was asked; it may be asked for something else."""


class TooLargeError(RequestRefused):
    """An answer has more bytes than it may have; the server can be asked on."""


def too_much(most_bytes: int) -> TooLargeError:
    """Return the fault of an answer that is longer than it may be."""
    return TooLargeError(f"says more than {most_bytes >> 20 or 1} MB at once")


class SessionLost(Fault):
    """The server does not know the session any more: a new one may begin."""


class StoppedError(Exception):
    """The user stopped the request; the server is ended, since its answer would come for the next
    one."""


LONGEST_S = 3600.0
"""Limit on the time of a call, however often its server reports progress."""


class Wait:
    """Time limit of a request, and whether the user still wants its answer."""

    def __init__(self, patience_s: float, is_stopped: Callable[[], bool]) -> None:
        self.patience_s = patience_s
        self._is_stopped = is_stopped
        self._last_s = time.monotonic() + max(patience_s, LONGEST_S)
        self._deadline_s = time.monotonic() + patience_s

    @property
    def left_s(self) -> float:
        """Seconds left, 0 or more."""
        return max(0.0, self._deadline_s - time.monotonic())

    def extend(self) -> None:
        """Start the time limit again: the server has reported progress."""
        self._deadline_s = min(time.monotonic() + self.patience_s, self._last_s)

    def look(self) -> None:
        """Raise StoppedError if the user stopped it, and Fault if the time is over."""
        if self._is_stopped():
            raise StoppedError
        if not self.left_s:
            raise Fault(f"did not answer within {self.patience_s:g} s")


class Transport(Protocol):
    """A way to one server, for one thread at a time. Raises Fault or StoppedError."""

    @property
    def shown(self) -> str:
        """Which server it is, in a line."""

    @property
    def is_open(self) -> bool:
        """Whether the server can be asked."""

    def open(self) -> None:
        """Begin."""

    def send(self, message: Mapping[str, Any], wait: Wait) -> None:
        """Send a message that has no answer."""

    def ask(self, message: Mapping[str, Any], wait: Wait, most_bytes: int) -> Iterator[Messages]:
        """Send a message and yield what comes, until no one asks for more; ``most_bytes`` of it."""

    def note_version(self, version: str) -> None:
        """The server speaks this version of the protocol."""

    def close(self) -> None:
        """End; what is closed can be opened again."""
