"""Transport of messages to a tool server and back: the interface, faults and time limits that pipes
and addresses share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

Messages = list[dict[str, Any]]

CHECK_PERIOD_S = 0.1
"""Time between two checks whether the user stops a request."""
MAX_CALL_S = 3600.0
"""Limit on the time of a call, however often its server reports progress."""


class Fault(Exception):
    """Fault of a server, worded as the end of a sentence about it."""


class RequestRefused(Fault):
    """The server refused a request; other requests may succeed."""


class TooLargeError(RequestRefused):
    """An answer has too many bytes; other requests may succeed."""


def too_large(max_bytes: int) -> TooLargeError:
    """Return the fault of an answer that is too large."""
    return TooLargeError(f"sends more than {max_bytes >> 20 or 1} MB at once")


class SessionLost(Fault):
    """The server does not know the session any more; a new one may start."""


class StoppedError(Exception):
    """The user stopped the request. The server must end: it would send the answer to the next
    request."""


class Wait:
    """Time limit of a request, which the user can stop.

    Args:
        patience_s: Time limit.
        is_stopped: Whether the user has stopped the request.
    """

    def __init__(self, patience_s: float, is_stopped: Callable[[], bool]) -> None:
        self.patience_s = patience_s
        self._is_stopped = is_stopped
        now_s = time.monotonic()
        self._deadline_s = now_s + patience_s
        self._last_deadline_s = now_s + max(patience_s, MAX_CALL_S)

    @property
    def left_s(self) -> float:
        """Seconds left, 0 or more."""
        return max(0.0, self._deadline_s - time.monotonic())

    def extend(self) -> None:
        """Start the time limit again because the server has reported progress."""
        self._deadline_s = min(time.monotonic() + self.patience_s, self._last_deadline_s)

    def check(self) -> None:
        """Check whether the request may continue.

        Raises:
            StoppedError: The user has stopped it.
            Fault: The time is over.
        """
        if self._is_stopped():
            raise StoppedError
        if not self.left_s:
            raise Fault(f"did not answer within {self.patience_s:g} s")


class Transport(Protocol):
    """Connection to one server, for one thread at a time. Methods raise Fault and StoppedError."""

    @property
    def label(self) -> str:
        """Command or address of the server, in one line."""

    @property
    def is_open(self) -> bool:
        """Whether the server can get requests."""

    def open(self) -> None:
        """Open the connection."""

    def send(self, message: Mapping[str, Any], wait: Wait) -> None:
        """Send a message without an answer."""

    def ask(self, message: Mapping[str, Any], wait: Wait, max_bytes: int) -> Iterator[Messages]:
        """Send a message, and yield what comes back, until the caller stops.

        Args:
            message: The message.
            wait: Time limit.
            max_bytes: Limit on everything that comes back.
        """

    def set_version(self, version: str) -> None:
        """Use a version of the protocol."""

    def close(self) -> None:
        """Close the connection, which can be opened again."""
