"""Requests that are open at once: which of them count, and which ones make room for others.

No client can keep others out: a request takes a place only once its body has come whole, and where
places or memory for bodies run short, those who have kept the server waiting longest are cut first.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from app.server.api_error import ApiError, unavailable
from app.server.transfer import MOST_BODY_BYTES

MOST_REQUESTS = 64
"""Limit on the requests that have come whole and are answered or wait."""
MOST_BYTES = 160 << 20
"""Limit on the bytes of the bodies of all open requests: forty of the largest."""
STUCK_S = 5.0
"""After how long a client that takes nothing of its answer can lose its place to another one."""


class OpenRequest:
    """Request while it comes and is answered.

    Attributes:
        address: of the client; "" where it is not known.
        is_whole: whether the body has come whole.
        body_bytes: bytes of the body that have come.
        stuck_since_s: since when the client takes nothing of its answer; None while it does.
    """

    def __init__(self, address: str, cut: Callable[[], object]) -> None:
        self.address = address
        self.cut = cut
        self.is_whole = False
        self.body_bytes = 0
        self.stuck_since_s: float | None = None


class OpenRequests:
    """All requests that are open, the oldest first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: dict[OpenRequest, None] = {}

    def begin(self, address: str, cut: Callable[[], object]) -> OpenRequest:
        """Note a request that begins to come; ``cut`` ends its connection."""
        request = OpenRequest(address, cut)
        self._requests[request] = None
        return request

    def end(self, request: OpenRequest) -> None:
        """Forget a request."""
        self._requests.pop(request, None)

    def take_bytes(self, request: OpenRequest, n_bytes: int) -> None:
        """Note more of a body.

        Where all bodies together are too large, others that have not come whole are cut.

        Raises:
            ApiError: those that have come whole leave no room for this one.
        """
        request.body_bytes += n_bytes
        while sum(map(_kept_bytes, self._requests)) > MOST_BYTES:
            other = self._slowest_sender(request)
            if other is None:
                raise _too_many("too much is being sent at once (try again later)")
            self._cut(other)

    def take_place(self, request: OpenRequest) -> None:
        """Count a request that has come whole.

        Raises:
            ApiError: too many are open.
        """
        if request.is_whole:
            return
        if sum(other.is_whole for other in self._requests) >= MOST_REQUESTS:
            stuck = self._longest_stuck()
            if stuck is None:
                raise _too_many("too many requests are open (try again later)")
            self._cut(stuck)
        request.is_whole = True

    def begin_to_send(self, request: OpenRequest) -> None:
        """Note that a part of the answer is handed to the client's connection."""
        request.stuck_since_s = self._clock()

    def end_of_sending(self, request: OpenRequest) -> None:
        """Note that the connection has taken a part of the answer."""
        request.stuck_since_s = None

    def _slowest_sender(self, newcomer: OpenRequest) -> OpenRequest | None:
        """Return the oldest other request that has not come whole.

        It is one of the address that sends most at once.
        """
        senders = [
            request for request in self._requests if request.body_bytes and not request.is_whole
        ]
        n_bytes = Counter[str]()
        for sender in senders:
            n_bytes[sender.address] += sender.body_bytes
        others = [sender for sender in senders if sender is not newcomer]
        return max(others, key=lambda sender: n_bytes[sender.address], default=None)

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
        self.end(request)
        request.cut()


def _kept_bytes(request: OpenRequest) -> int:
    """Return the bytes that are kept of a body: none of one that is too large."""
    if request.body_bytes <= MOST_BODY_BYTES:
        return request.body_bytes
    return 0


def _too_many(message: str) -> ApiError:
    return unavailable(message, "too_many_requests")
