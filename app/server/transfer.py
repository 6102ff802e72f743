"""Transfer of a request: its limited body, JSON or a stream in response, and clients that leave."""

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

MAX_BODY_BYTES = 24 << 20
"""Limit on the body of a request: a few photos, and many times the text that a context can hold."""
MAX_DISCARDED_BYTES = 64 << 20
"""Bytes beyond this limit that are received and dropped, so that the sender reads the refusal."""
BODY_PATIENCE_S = 30.0
"""Limit on the time in which a body arrives."""
LARGE_BODY_BYTES = 64 << 10
"""Size above which a body is parsed outside of the event loop.

The event loop parses a usual request within a millisecond.
"""
_PICTURE_FIELDS = b'"image'
"""Beginning of the fields and types with pictures, in any dialect."""
KEEP_ALIVE_S = 5.0
"""Silence after which a stream sends a sign of life, so that no program in between closes it."""


class ClientLeftError(Exception):
    """The client has closed the connection."""


async def read_body(http_request: Request) -> bytes:
    """Return the complete body.

    Raises:
        ApiError: The body is too large or takes too long.
        ClientLeftError: The client has left.
    """
    try:
        return await asyncio.wait_for(_receive_body(http_request.receive), BODY_PATIENCE_S)
    except asyncio.TimeoutError:
        raise ApiError("the body took too long to arrive", 408, code="request_timeout") from None


class BodyReader:
    """Reads the bodies of all requests.

    Large bodies are parsed one after another in a thread: parsing one takes 0.1 s, during which no
    other Python thread runs. So are bodies with pictures, whose files may be on a slow disk.
    """

    def __init__(self) -> None:
        self._parsing = asyncio.Lock()

    async def read(self, http_request: Request, parse: Callable[[bytes], T]) -> T:
        """Return what a function parses from the body.

        Raises:
            ApiError: The body is too large, compressed, or takes too long; or any error of
                ``parse``.
            ClientLeftError: The client has left.
        """
        encoding = http_request.headers.get("content-encoding", "identity").strip().lower()
        if encoding != "identity":
            raise ApiError(
                f"the body is compressed ({encoding[:40]}): send it uncompressed",
                415,
                code="unsupported_encoding",
            )
        body = await read_body(http_request)
        if len(body) <= LARGE_BODY_BYTES and _PICTURE_FIELDS not in body:
            return parse(body)
        async with self._parsing:
            return await asyncio.wrap_future(in_background(partial(parse, body), "body"))


async def _receive_body(receive: Receive) -> bytes:
    body = bytearray()
    n_bytes = 0
    has_more = True
    while has_more and n_bytes <= MAX_BODY_BYTES + MAX_DISCARDED_BYTES:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        chunk = message.get("body", b"")
        n_bytes += len(chunk)
        if n_bytes <= MAX_BODY_BYTES:
            body += chunk
        else:
            body.clear()
        has_more = message.get("more_body", False)
    if n_bytes > MAX_BODY_BYTES:
        raise ApiError(
            f"the body is larger than {MAX_BODY_BYTES} bytes", 413, code="request_too_large"
        )
    return bytes(body)


@asynccontextmanager
async def watch_client(receive: Receive, on_leave: Callable[[], object]) -> AsyncIterator[None]:
    """Call a function if the client leaves within the block; the body must have been read."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        on_leave()

    task = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class JsonResponse(Response):
    """Response with a JSON object, in ASCII because texts may have lone surrogates."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the JSON."""
        return _encode_json(content)


class EventStream(Response):
    """Response with a stream of JSON objects.

    The objects are server-sent events, which have a name if the object has a ``type``, or lines of
    JSON.

    Args:
        objects: The objects; None stands for a sign of life.
        ends_with_done: Whether ``[DONE]`` ends the stream.
        is_ndjson: Whether the objects are lines of JSON.
    """

    def __init__(
        self,
        objects: AsyncGenerator[dict[str, Any] | None, None],
        ends_with_done: bool,
        is_ndjson: bool,
    ) -> None:
        if is_ndjson:
            media_type = "application/x-ndjson"
            self._encode = _encode_line
        else:
            media_type = "text/event-stream"
            self._encode = _encode_event
        super().__init__(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, media_type=media_type
        )
        del self.headers["content-length"]
        self._objects = objects
        self._end = b"data: [DONE]\n\n" if ends_with_done else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the objects as they come."""
        async with aclosing(self._objects) as objects:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for stream_object in objects:
                body = self._encode(stream_object)
                await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": self._end, "more_body": False})


def _encode_line(stream_object: dict[str, Any] | None) -> bytes:
    return _encode_json(stream_object) + b"\n"


def _encode_event(stream_object: dict[str, Any] | None) -> bytes:
    if stream_object is None:
        return b": still here\n\n"
    name = b""
    if "type" in stream_object:
        name = f"event: {stream_object['type']}\n".encode()
    return name + b"data: " + _encode_json(stream_object) + b"\n\n"


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
