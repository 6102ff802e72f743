"""Guard of the server: checks every request before the application, and answers every failure.

A request needs a permitted caller, an API key, and a place among the open requests.

No web page may use the server unless it is the server's own or the settings name its origin.
Browsers say where a page comes from (Origin, Sec-Fetch-Site), and a host name that an attacker
points at this machine (DNS rebinding) is not among the names of the server.
"""

from __future__ import annotations

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
from app.server.api_error import ANTHROPIC_OVERLOADED, ApiError, without_trace
from app.server.deadline import Deadline
from app.server.open_requests import OpenRequest, OpenRequests
from app.server.start_page import PATHS as PAGE_PATHS
from app.server.start_page import accepts_page
from app.server.transfer import ClientLeftError, JsonResponse

LARGE_BYTES = 256 << 10
"""Size of a body from which its memory is given back to the system."""
SEND_PATIENCE_S = 60.0
"""Limit on the time in which a client reads nothing; then its connection is cut."""
CLIENT_LEFT = 499
"""Status in log and counters for a request whose client has left. It is never sent."""
ABORT = "abort"
"""Key in the state of a request for the function that cuts its connection."""
REQUESTED_PATH = "requested_path"
"""Key of a request for the path that the client named, which errors repeat."""
_PUBLIC_PATHS = ("/health",)
"""Paths that need neither a key nor a place."""
_CLOSE = {"Connection": "close"}  # The rest of the body is not read.
_HEADERS_BY_STATUS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: _CLOSE,
    413: _CLOSE,
    503: {"Retry-After": "2"},
}
"""Headers of refusals."""
ANTHROPIC_PATH = "/v1/messages"
"""Beginning of the paths of Anthropic's API, whose errors have another form."""
V1_PATHS = (
    "/chat/completions", "/completions", "/responses", "/messages", "/embeddings", "/rerank",
    "/models",
)  # fmt: skip
"""Paths below /v1. Base addresses of clients often lack /v1 or have it twice."""
MAX_HEADER_CHARS = 2000
"""Limit on the header names that a web page asks for."""
_ABSOLUTE_URL = re.compile(r"https?://([^/]*)(/.*|)", re.IGNORECASE | re.DOTALL)
_SLASHES = re.compile(r"/+")
_VERSIONS = re.compile(r"(/v1)+(?=/|$)")


class Guard:
    """ASGI application that checks requests before another one, and answers its failures.

    Args:
        app: The other application.
        names: Host names of the server besides ``localhost`` and IP addresses.
        api_key: Key that requests must have; "" for none.
        on_response: Called with the scope and status of each response.
        origins: Origins of web pages that may use the server, as browsers send them:
            ``https://notes.example``.
    """

    def __init__(
        self,
        app: ASGIApp,
        names: Collection[str],
        api_key: str,
        on_response: Callable[[Scope, int], object],
        origins: Collection[str],
    ) -> None:
        self._api_key = api_key.encode()
        self._app = app
        self._on_response = on_response
        self._names = {"localhost", *(name.lower() for name in names)}
        self._origins = {origin.lower() for origin in origins}
        self._requests = OpenRequests()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        status = 0
        headers = Headers(scope=scope)
        host, path = split_target(scope["path"])
        # With "app" in the scope, the router raises an exception for unknown paths.
        scope = {**scope, "path": normalize_path(path), REQUESTED_PATH: path, "app": self}
        origins = {origin.lower() for origin in headers.getlist("origin")}
        is_allowed_page = bool(origins) and origins <= self._origins
        has_body = "content-length" in headers or "transfer-encoding" in headers
        needs_place = scope["path"] not in _PUBLIC_PATHS
        request = self._requests.add(_client_address(scope), partial(_cut, scope))
        deadline = Deadline(partial(_cut, scope))

        async def send_watched(message: Message) -> None:
            """Record the status, let an allowed page read the response, and cut off a client that
            reads nothing."""
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if is_allowed_page:
                    message["headers"] = [
                        *message["headers"],
                        (b"access-control-allow-origin", headers["origin"].encode("latin-1")),
                        (b"vary", b"Origin"),
                    ]
            self._requests.start_sending(request)
            deadline.set(SEND_PATIENCE_S)
            try:
                await send(message)
            finally:
                deadline.clear()
                self._requests.finish_sending(request)
            if deadline.was_reached:
                raise ClientLeftError

        async def receive_counted() -> Message:
            """Count the bytes of the body, and take a place when it is complete."""
            message = await receive()
            if message["type"] == "http.request":
                self._requests.add_bytes(request, len(message.get("body", b"")))
                if needs_place and not message.get("more_body", False):
                    self._requests.take_place(request)
            return message

        error: ApiError | None = None
        try:
            try:
                self._check_caller(host, headers, is_allowed_page)
                is_preflight = (
                    scope["method"] == "OPTIONS" and "access-control-request-method" in headers
                )
                if is_allowed_page and is_preflight:
                    response = Response(status_code=204, headers=_preflight_headers(headers))
                    await response(scope, receive, send_watched)
                    return
                self._check_key(scope["path"], headers)
                if needs_place and not has_body:
                    self._requests.take_place(request)
                await self._app(scope, receive_counted, send_watched)
            except ClientLeftError as departure:
                without_trace(departure)
                status = CLIENT_LEFT
            except Exception as failure:
                error = _api_error_of(failure, scope)
                without_trace(failure)

            has_started = status != 0
            if error is not None and has_started:
                _cut(scope)
            elif error is not None:
                with suppress(ClientLeftError):
                    await _error_response(error, scope)(scope, receive, send_watched)
        finally:
            deadline.close()
            self._end(request, scope, status)

    def _end(self, request: OpenRequest, scope: Scope, status: int) -> None:
        """Record the end of a request, and give back the memory of its body."""
        self._requests.remove(request)
        self._on_response(scope, status)
        if request.body_bytes > LARGE_BYTES:
            in_background(give_back_memory, "memory")

    def _check_caller(self, host: str | None, headers: Headers, is_allowed_page: bool) -> None:
        """Refuse hosts that are not names of the server, and web pages that are not allowed."""
        hosts = [headers.get("host", "")]
        if host is not None:
            hosts.append(host)
        for name in map(host_name, hosts):
            if name not in self._names and not _is_ip_address(name):
                raise ApiError(
                    f'the host "{name[:80]}" is not served here (jalopy serve --allow-host NAME '
                    "allows another name)",
                    403,
                    code="host_refused",
                )

        is_page = "origin" in headers or headers.get("sec-fetch-site", "none") != "none"
        if is_page and not is_allowed_page and not _is_own_page(headers):
            raise ApiError(
                "this web page may not use the server (the setting serve.origins lists the pages "
                "that may)",
                403,
                code="origin_refused",
            )

    def _check_key(self, path: str, headers: Headers) -> None:
        if not self._api_key or path in _PUBLIC_PATHS:
            return
        if path in PAGE_PATHS and accepts_page(headers.get("accept", "")):
            return  # the page asks for the key
        scheme, _, bearer_key = headers.get("authorization", "").partition(" ")
        keys = [headers.get("x-api-key", "")]
        if scheme.lower() == "bearer":
            keys.append(bearer_key)
        if not any(hmac.compare_digest(key.strip().encode(), self._api_key) for key in keys):
            raise ApiError(
                "the API key is missing or wrong (header: Authorization: Bearer KEY)",
                401,
                code="invalid_api_key",
            )


def _preflight_headers(headers: Headers) -> dict[str, str]:
    """Return the headers of the response to a preflight, which a browser sends before the request
    of a page.

    A preflight has no key. It also asks whether a page of the network may reach this machine.
    """
    permission = {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": headers.get("access-control-request-headers", "")[
            :MAX_HEADER_CHARS
        ],
        "Access-Control-Max-Age": "600",
    }
    if headers.get("access-control-request-private-network") == "true":
        permission["Access-Control-Allow-Private-Network"] = "true"
    return permission


def _is_own_page(headers: Headers) -> bool:
    """Whether a browser sends a request for the page of this server.

    The page's address is the one in the Host header, which is a name of the server. Browsers leave
    Sec-Fetch-Site out where a page came without encryption from another machine.
    """
    site = headers.get("sec-fetch-site", "")
    host = headers.get("host", "")
    own_origins = {f"http://{host}".lower()}
    if site == "same-origin":
        own_origins.add(f"https://{host}".lower())  # through a proxy with TLS
    origins = {origin.lower() for origin in headers.getlist("origin")}
    return site in ("", "same-origin") and origins <= own_origins


def host_name(host: str) -> str:
    """Return the name in a Host header in lower case, without the port and a final dot."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    name = host
    if host.count(":") == 1:
        name = host.rpartition(":")[0]
    return name.lower().removesuffix(".")


def _is_ip_address(name: str) -> bool:
    """Whether a name is an IP address, which no name server can point elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _api_error_of(error: Exception, scope: Scope) -> ApiError:
    """Return the API error for an exception. The client is told only the name of a bug; the log has
    the details."""
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, HTTPException):
        return ApiError(bug_line(error, " in the server"), 500, code="internal_error")

    path = scope[REQUESTED_PATH][:80]
    if error.status_code == 405:
        return ApiError(
            f"{path} does not support the method {scope['method']}", 405, code="method_not_allowed"
        )
    return ApiError(f"there is nothing at {path}", error.status_code, code="not_found")


def _error_response(error: ApiError, scope: Scope) -> JsonResponse:
    """Return the response for an error, in the dialect of the request."""
    status = error.status
    if scope["path"].startswith("/api/"):
        body = {"error": error.message}
    elif scope["path"].startswith(ANTHROPIC_PATH):
        body = error.anthropic_body()
        if status == 503:
            status = ANTHROPIC_OVERLOADED
    else:
        body = error.body()
    return JsonResponse(body, status, _HEADERS_BY_STATUS.get(error.status))


def _client_address(scope: Scope) -> str:
    """Return the address of the client; "" if unknown."""
    client = scope.get("client")
    if client:
        return str(client[0])
    return ""


def _cut(scope: Scope) -> None:
    """Cut the connection of a request."""
    scope["state"][ABORT]()


def split_target(target: str) -> tuple[str | None, str]:
    """Return the host and the path of a request target.

    Clients of proxies send an absolute URL; the host is None for other targets.
    """
    match = _ABSOLUTE_URL.fullmatch(target)
    if match:
        return match[1], match[2] or "/"
    return None, target


def normalize_path(path: str) -> str:
    """Return the path of the server that a client means; unknown paths come back unchanged."""
    plain = _SLASHES.sub("/", path)
    if len(plain) > 1 and plain.endswith("/"):
        plain = plain[:-1]
    short_path = plain
    if plain.startswith("/v1"):
        short_path = _VERSIONS.sub("", plain, count=1)
    if any(short_path == v1_path or short_path.startswith(f"{v1_path}/") for v1_path in V1_PATHS):
        return f"/v1{short_path}"
    return short_path or plain
