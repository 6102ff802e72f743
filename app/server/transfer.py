"""Transfer between a client and its request: a bounded body in, a stream out, and the detection of
a disconnect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.program.background import in_background
from app.server.api_error import ApiError

T = TypeVar("T")

MOST_BODY_BYTES = 4 << 20
"""Limit on the body of a request: many times the text that any context holds."""
MOST_DISCARDED_BYTES = 64 << 20
"""How much more of a body is taken in and forgotten, so that its sender reads why it is refused."""
BODY_PATIENCE_S = 30.0
"""Limit on the time that a body takes to come."""
LARGE_BODY_BYTES = 64 << 10
"""Size above which a body is read outside of the event loop.

In the event loop, a person's usual request is read in a millisecond.
"""
STILL_HERE_S = 5.0
"""After how long without text a stream says that it goes on, so that no one between gives it up."""


class GoneError(Exception):
    """The client has left."""


async def read_body(request: Request) -> bytes:
    """Return the whole body.

    Raises ApiError: it is too large or takes too long; GoneError: the client has left.
    """
    try:
        return await asyncio.wait_for(_read_body(request.receive), BODY_PATIENCE_S)
    except asyncio.TimeoutError:
        raise ApiError("the body did not come in time", 408, code="request_timeout") from None


class BodyReader:
    """Reads the bodies of all requests.

    Large ones are read one after the other, in a thread: parsing one takes a tenth of a second, in
    which no other thread of Python runs.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def read(self, request: Request, read: Callable[[bytes], T]) -> T:
        """Return what a function reads from a request's body.

        Raises:
            ApiError: the body is too large, compressed or takes too long; or whatever ``read``
                raises.
            GoneError: the client has left.
        """
        packing = request.headers.get("content-encoding", "identity").strip().lower()
        if packing != "identity":
            raise ApiError(
                f"the body is compressed ({packing[:40]}): send it as it is",
                415,
                code="unsupported_encoding",
            )
        body = await read_body(request)
        if len(body) <= LARGE_BODY_BYTES:
            return read(body)
        async with self._turn:
            return await asyncio.wrap_future(in_background(partial(read, body), "body"))


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    n_bytes = 0
    has_more = True
    while has_more and n_bytes <= MOST_BODY_BYTES + MOST_DISCARDED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise GoneError
        part = message.get("body", b"")
        n_bytes += len(part)
        if n_bytes <= MOST_BODY_BYTES:
            body += part
        else:
            body.clear()
        has_more = message.get("more_body", False)
    if n_bytes > MOST_BODY_BYTES:
        raise ApiError(
            f"the body is larger than {MOST_BODY_BYTES} bytes", 413, code="request_too_large"
        )
    return bytes(body)


@asynccontextmanager
async def watched(receive: Receive, on_gone: Callable[[], object]) -> AsyncIterator[None]:
    """Call a function if the client leaves meanwhile; the body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        on_gone()

    task = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class JsonBody(Response):
    """An object as JSON, in ASCII: texts may hold halves of characters."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return its bytes."""
        return _as_json(content)


class EventStream(Response):
    """Server-sent events, each a JSON object, which is named where it has a ``type``.

    Args:
        objects: what is sent; None says that it goes on.
        ends_with_done: whether ``[DONE]`` comes last.
        in_lines: objects alone, one in a line.
    """

    def __init__(
        self,
        objects: AsyncGenerator[dict[str, Any] | None, None],
        ends_with_done: bool,
        in_lines: bool,
    ) -> None:
        if in_lines:
            kind = "application/x-ndjson"
        else:
            kind = "text/event-stream"
        super().__init__(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=kind
        )
        del self.headers["content-length"]
        if in_lines:
            self._encoded = _line
        else:
            self._encoded = _event
        self._objects = objects
        if ends_with_done:
            self._last = b"data: [DONE]\n\n"
        else:
            self._last = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them as they come."""
        async with aclosing(self._objects) as objects:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for one in objects:
                await send(
                    {"type": "http.response.body", "body": self._encoded(one), "more_body": True}
                )
        await send({"type": "http.response.body", "body": self._last, "more_body": False})


def _line(one: dict[str, Any] | None) -> bytes:
    return _as_json(one) + b"\n"


def _event(one: dict[str, Any] | None) -> bytes:
    if one is None:
        return b": still here\n\n"
    if "type" in one:
        name = f"event: {one['type']}\n".encode()
    else:
        name = b""
    return name + b"data: " + _as_json(one) + b"\n\n"


def _as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
