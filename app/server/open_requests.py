"""Open HTTP requests: how many may be open at once, and which are cut to make room.

No client can keep others out: a request takes a place only when its body is complete, and when
places or memory for bodies run short, the clients that have kept the server waiting longest are cut
first.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from app.server.api_error import ApiError, unavailable
from app.server.transfer import MAX_BODY_BYTES

MAX_REQUESTS = 64
"""Limit on the complete requests that are answered or wait."""
MAX_BYTES = 160 << 20
"""Limit on the bytes of the bodies of all open requests: forty of the largest."""
STUCK_S = 5.0
"""Time after which a client that does not read its response may be cut for another one."""


class OpenRequest:
    """An HTTP request while it arrives and is answered.

    Attributes:
        address: Address of the client; "" if unknown.
        cut: Cuts the connection.
        is_complete: Whether the whole body has arrived.
        body_bytes: Number of bytes of the body that have arrived.
        stuck_since_s: Time since which the client reads nothing of its response. None while it
            reads.
    """

    def __init__(self, address: str, cut: Callable[[], object]) -> None:
        self.address = address
        self.cut = cut
        self.is_complete = False
        self.body_bytes = 0
        self.stuck_since_s: float | None = None


class OpenRequests:
    """All open requests, the oldest first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: dict[OpenRequest, None] = {}

    def add(self, address: str, cut: Callable[[], object]) -> OpenRequest:
        """Add a request that starts to arrive.

        Args:
            address: Address of the client.
            cut: Cuts the connection.
        """
        request = OpenRequest(address, cut)
        self._requests[request] = None
        return request

    def remove(self, request: OpenRequest) -> None:
        """Remove a request."""
        self._requests.pop(request, None)

    def add_bytes(self, request: OpenRequest, n_bytes: int) -> None:
        """Count bytes of a body, and cut incomplete requests if all bodies together are too large.

        Raises:
            ApiError: Complete requests leave no memory for this one.
        """
        request.body_bytes += n_bytes
        while sum(map(_buffered_bytes, self._requests)) > MAX_BYTES:
            slowest = self._slowest_sender(request)
            if slowest is None:
                raise _too_many_requests("too much is being sent at once (try again later)")
            self._cut(slowest)

    def take_place(self, request: OpenRequest) -> None:
        """Give a place to a complete request.

        Raises:
            ApiError: Too many requests are open.
        """
        if request.is_complete:
            return
        n_complete = sum(other.is_complete for other in self._requests)
        if n_complete >= MAX_REQUESTS:
            stuck = self._longest_stuck()
            if stuck is None:
                raise _too_many_requests("too many requests are open (try again later)")
            self._cut(stuck)
        request.is_complete = True

    def start_sending(self, request: OpenRequest) -> None:
        """Record that a piece of the response is passed to the client's connection."""
        request.stuck_since_s = self._clock()

    def finish_sending(self, request: OpenRequest) -> None:
        """Record that the connection has accepted the piece."""
        request.stuck_since_s = None

    def _slowest_sender(self, newest: OpenRequest) -> OpenRequest | None:
        """Return the oldest other incomplete request of the address that sends most at once."""
        senders = [
            request for request in self._requests if request.body_bytes and not request.is_complete
        ]
        bytes_by_address = Counter[str]()
        for sender in senders:
            bytes_by_address[sender.address] += sender.body_bytes
        candidates = [sender for sender in senders if sender is not newest]
        return max(candidates, key=lambda sender: bytes_by_address[sender.address], default=None)

    def _longest_stuck(self) -> OpenRequest | None:
        until_s = self._clock() - STUCK_S
        stuck = [
            (request.stuck_since_s, index, request)
            for index, request in enumerate(self._requests)
            if request.stuck_since_s is not None and request.stuck_since_s <= until_s
        ]
        if stuck:
            return min(stuck)[2]
        return None

    def _cut(self, request: OpenRequest) -> None:
        self.remove(request)
        request.cut()


def _buffered_bytes(request: OpenRequest) -> int:
    """Return the bytes of a body that are in memory; the body of a refused request is dropped."""
    if request.body_bytes <= MAX_BODY_BYTES:
        return request.body_bytes
    return 0


def _too_many_requests(message: str) -> ApiError:
    return unavailable(message, "too_many_requests")
