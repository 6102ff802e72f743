"""Connections of the server: bounded in number, and none waits forever for a request that does not come.

Takes uvicorn's protocol on h11 (pure Python, strict) and adds deadlines, which uvicorn has for idle connections only.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from app.server.api_error import ApiError
from app.server.transfer import ABORT, as_json

MOST_CONNECTIONS = 128
"""Limit on the connections that are open at once; further ones are cut."""
MOST_HEAD_BYTES = 16 << 10
"""Limit on a request's line and headers."""
REQUEST_PATIENCE_S = 30.0
"""Limit on the time from a request's first byte, or from a connection's beginning, to the request's last byte."""
IDLE_S = 30
"""How long a connection is kept open behind an answer."""


class BoundedProtocol(H11Protocol):
    """One connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._since_s = 0.0
        """When the request began to come that is awaited."""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless there are too many."""
        if len(self.connections) >= MOST_CONNECTIONS:
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: transport.abort}
        self._since_s = self.loop.time()
        self._deadline = self.loop.call_later(REQUEST_PATIENCE_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        was_awaited = self._is_awaited
        super().data_received(data)
        if self._is_awaited and not was_awaited:
            self._since_s = self.loop.time()

    @property
    def _is_awaited(self) -> bool:
        """Whether a request has begun to come, or is the first, and has not come whole."""
        if self.cycle is None or self.cycle.more_body:
            return True
        return self.cycle.response_complete and self.timeout_keep_alive_task is None

    def _look(self) -> None:
        left_s = REQUEST_PATIENCE_S
        if self._is_awaited:
            left_s = self._since_s + REQUEST_PATIENCE_S - self.loop.time()
        if left_s <= 0:
            self.transport.abort()
        else:
            self._deadline = self.loop.call_later(left_s, self._look)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, in the words of the API."""
        body = as_json(ApiError("this is not an HTTP request", code="invalid_http").body())
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
