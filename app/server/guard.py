"""Checks before every request, and an answer for every failure.

A request needs an allowed origin, a key, and a place among those that are open.

No page in a browser may talk to the server, unless the settings name it. Browsers say where a page
comes from (Origin, Sec-Fetch-Site); and a name that an attacker points at this machine (DNS
rebinding) is none of the names that the server answers to.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.program.background import in_background
from app.program.garbage import give_back_memory
from app.program.refusals import bug_line
from app.server.api_error import ApiError, without_trace
from app.server.open_requests import OpenRequest, OpenRequests
from app.server.transfer import GoneError, JsonBody

LARGE_BYTES = 256 << 10
"""Of a body: what it took goes back to the system."""
SEND_PATIENCE_S = 60.0
"""Limit on the time that a client takes nothing of what is sent; then the connection is cut."""
CLIENT_LEFT = 499
"""The status that log and counters have for a request whose client left; no one receives it."""
ABORT = "abort"
"""In the state of a request: cuts its connection."""
_OPEN_PATHS = ("/health",)
"""Answered without a key, however many requests are open."""
_CLOSES = {"Connection": "close"}  # what is left of the body is not read
_HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: _CLOSES,
    413: _CLOSES,
    503: {"Retry-After": "2"},
}
"""Of refusals, by their status."""
API = ("/chat/completions", "/completions", "/responses", "/embeddings", "/rerank", "/models")
"""Paths that begin with /v1, which a base address may lack, or have twice."""
MOST_HEADER_CHARS = 2000
"""Limit on the names of headers that a page asks for."""
_WHOLE_ADDRESS = re.compile(r"https?://([^/]*)(/.*|)", re.IGNORECASE | re.DOTALL)
_SLASHES = re.compile(r"/+")
_VERSIONS = re.compile(r"(/v1)+(?=/|$)")


class Guard:
    """Answers what must not reach the application, and what goes wrong in it.

    Args:
        names: host names by which the server may be called, other than ``localhost`` and addresses
            in figures.
        note: called with scope and status of each answer.
        origins: of the pages in browsers that may use the server, as browsers send them:
            ``https://notes.example``.
    """

    def __init__(
        self,
        app: ASGIApp,
        names: Collection[str],
        api_key: str,
        note: Callable[[Scope, int], object],
        origins: Collection[str],
    ) -> None:
        self._api_key = api_key.encode()
        self._app = app
        self._note = note
        self._names = {"localhost", *(name.lower() for name in names)}
        self._origins = {origin.lower() for origin in origins}
        self._requests = OpenRequests()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        status = 0
        headers = Headers(scope=scope)
        host, path = host_and_path(scope["path"])
        # in an app, the router raises what is not there
        scope = {
            **scope,
            "path": meant_path(path),
            "app": self,
        }
        origins = {origin.lower() for origin in headers.getlist("origin")}
        may_ask = bool(origins) and origins <= self._origins
        has_body = "content-length" in headers or "transfer-encoding" in headers
        is_counted = scope["path"] not in _OPEN_PATHS
        request = self._requests.begin(_address(scope), partial(_cut, scope))

        async def sending(message: Message) -> None:
            """Note the status, let an allowed page read the answer, and cut off a client that takes
            nothing."""
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if may_ask:
                    allowed = b"access-control-allow-origin", headers["origin"].encode("latin-1")
                    message["headers"] = [*message["headers"], allowed, (b"vary", b"Origin")]
            self._requests.begin_to_send(request)
            try:
                await asyncio.wait_for(send(message), SEND_PATIENCE_S)
            except asyncio.TimeoutError:
                _cut(scope)
                raise GoneError from None
            finally:
                self._requests.end_of_sending(request)

        async def counting() -> Message:
            """Count the bytes of the body, and the request when it is whole."""
            message = await receive()
            if message["type"] == "http.request":
                self._requests.take_bytes(request, len(message.get("body", b"")))
                if is_counted and not message.get("more_body", False):
                    self._requests.take_place(request)
            return message

        refusal: ApiError | None = None
        try:
            try:
                self._check_caller(host, headers, may_ask)
                if (
                    may_ask
                    and scope["method"] == "OPTIONS"
                    and "access-control-request-method" in headers
                ):
                    await Response(status_code=204, headers=_permission(headers))(
                        scope, receive, sending
                    )
                    return
                self._check_key(scope["path"], headers)
                if is_counted and not has_body:
                    self._requests.take_place(request)
                await self._app(scope, counting, sending)
            except GoneError as error:
                without_trace(error)
                status = CLIENT_LEFT
            except Exception as error:
                refusal = _error_of(error, scope)
                without_trace(error)
            if refusal is not None and status:  # an answer has begun
                _cut(scope)
            elif refusal is not None:
                with suppress(GoneError):
                    await _refusal(refusal, scope)(scope, receive, sending)
        finally:
            self._end(request, scope, status)

    def _end(self, request: OpenRequest, scope: Scope, status: int) -> None:
        """Note the end of a request, and give back what its body took."""
        self._requests.end(request)
        self._note(scope, status)
        if request.body_bytes > LARGE_BYTES:
            in_background(give_back_memory, "memory")

    def _check_caller(self, host: str | None, headers: Headers, may_ask: bool) -> None:
        hosts = [headers.get("host", ""), *([] if host is None else [host])]
        for name in map(host_name, hosts):
            if name not in self._names and not _is_address(name):
                cure = "jalopy serve --allow-host NAME allows another name"
                raise ApiError(
                    f'the host "{name[:80]}" is not served here ({cure})', 403, code="host_refused"
                )
        is_of_page = "origin" in headers or headers.get("sec-fetch-site", "none") != "none"
        if is_of_page and not may_ask:
            why = (
                "this page in a browser may not use this server (the setting serve.origins names "
                "those that may)"
            )
            raise ApiError(why, 403, code="origin_refused")

    def _check_key(self, path: str, headers: Headers) -> None:
        if self._api_key and path not in _OPEN_PATHS:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(
                key.strip().encode(), self._api_key
            ):
                why = "the API key is missing or wrong (header: Authorization: Bearer KEY)"
                raise ApiError(why, 401, code="invalid_api_key")


def _permission(headers: Headers) -> dict[str, str]:
    """Return what answers a browser that asks before a page's request.

    It asks without the key, and whether a page of the network may reach this machine at all.
    """
    permission = {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "")[
            :MOST_HEADER_CHARS
        ],
        "Access-Control-Max-Age": "600",
    }
    if headers.get("access-control-request-private-network") == "true":
        permission["Access-Control-Allow-Private-Network"] = "true"
    return permission


def host_name(host: str) -> str:
    """Return the name in a Host header in small letters, without the port.

    The dot that ends a whole name is left out, too.
    """
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    if host.count(":") == 1:
        name = host.rpartition(":")[0]
    else:
        name = host
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    """Whether it is an address in figures, which no name server can point elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _error_of(error: Exception, scope: Scope) -> ApiError:
    """Return what a client is told; a bug goes to the log and is only named."""
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, HTTPException):
        return ApiError(bug_line(error, " in the server"), 500, code="internal_error")
    path = scope["path"][:80]
    if error.status_code == 405:
        return ApiError(
            f"{scope['method']} is not possible at {path}", 405, code="method_not_allowed"
        )
    return ApiError(f"there is nothing at {path}", error.status_code, code="not_found")


def _refusal(error: ApiError, scope: Scope) -> JsonBody:
    """Return the answer that says what is wrong, in the words of the API that was asked."""
    if scope["path"].startswith("/api/"):
        body = {"error": error.message}
    else:
        body = error.body()
    return JsonBody(body, error.status, _HEADERS.get(error.status))


def _address(scope: Scope) -> str:
    """Return the address of a client; "" where it is not known."""
    client = scope.get("client")
    if client:
        return str(client[0])
    return ""


def _cut(scope: Scope) -> None:
    """Cut the connection of a request."""
    scope["state"][ABORT]()


def host_and_path(target: str) -> tuple[str | None, str]:
    """Return the host of a request that names its whole address, as proxies' clients do, else None;
    and the path."""
    found = _WHOLE_ADDRESS.fullmatch(target)
    if found:
        return (found[1], found[2] or "/")
    return (None, target)


def meant_path(path: str) -> str:
    """Return a path of the server for the ways in which clients write it; others as they are."""
    plain = _SLASHES.sub("/", path)
    if len(plain) > 1 and plain.endswith("/"):
        plain = plain[:-1]
    if plain.startswith("/v1"):
        rest = _VERSIONS.sub("", plain, count=1)
    else:
        rest = plain
    if any(rest == one or rest.startswith(f"{one}/") for one in API):
        return f"/v1{rest}"
    return rest or plain
