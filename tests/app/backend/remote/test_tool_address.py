"""Tests of tool servers at an address: all variants of the protocol, and faulty servers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from app.backend.remote.tool_address import ToolAddress, make_tool_address
from app.program.settings import ToolServerSetting
from app.tools.mcp.server import PROTOCOL, ServerLimits, ToolServer, ToolServerError
from app.tools.mcp.transport import StoppedError
from tests.app.server.serving import PATIENCE_S, until

LIMITS = ServerLimits(start_s=PATIENCE_S, call_s=PATIENCE_S, answer_bytes=1 << 20)
HEADS = {
    "odd status": b"HTTP/1.1 9999 Odd\r\n\r\n",
    "endless line": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    "endless head": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300 + b"\r\n",
}
"""Invalid starts of HTTP answers, by name."""
ECHO = {
    "name": "echo",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
}


class Served:
    """Tiny tool server. ``behaviour`` selects how it answers a call."""

    def __init__(self) -> None:
        self.behaviour = "json"
        self.session = "s-1"
        self.target = "/mcp/"
        """Target of redirects."""
        self.version = PROTOCOL
        self.refusals: list[tuple[int, bytes, dict[str, str]]] = []
        """Status, body and headers of the answers to the next calls."""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Verb, method and headers of each request, in order."""
        self.pinged: list[Any] = []
        self.ended = threading.Event()
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                served.answer(
                    self, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                )

            def do_DELETE(self) -> None:
                served.answer(self, {"method": ""})

            def log_message(self, *_: Any) -> None:
                """Write no log."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/mcp"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler, message: dict[str, Any]) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        method = message.get("method")
        number = message.get("id")
        session = headers.get("mcp-session-id")
        if method is None:
            self.pinged.append(message)
        else:
            self.requests.append((request.command, method, headers))
        if self.behaviour == "key" and headers.get("authorization") != "Bearer secret":
            reply(request, 401, b"no")
        elif self.behaviour == "page":
            reply(request, 200, b"<html>")
        elif self.behaviour == "empty":
            reply(request, 204)
        elif self.behaviour == "brotli":
            reply(request, 200, b"x", **{"Content-Encoding": "br"})
        elif self.behaviour in HEADS:
            with suppress(OSError):  # the client has had enough
                request.wfile.write(HEADS[self.behaviour])
            request.close_connection = True
        elif self.behaviour == "away":
            reply(request, 307, Location="http://127.0.0.1:9/elsewhere")
        elif self.behaviour.startswith("redirect ") and request.path == "/mcp":
            reply(request, int(self.behaviour.split()[1]), Location=self.target)
        elif self.behaviour == "circle":
            reply(request, 307, Location="/mcp")
        elif self.behaviour == "version" and method == "initialize":
            reply(
                request, 200, result(number, {"protocolVersion": self.version, "capabilities": {}})
            )
        elif self.behaviour == "no notices" and number is None:
            reply(request, 405)
        elif method == "tools/call" and self.refusals:
            status, body, headers = self.refusals.pop(0)
            reply(request, status, body, **headers)
        elif method == "initialize":
            version = {"protocolVersion": PROTOCOL, "capabilities": {}}
            reply(request, 200, result(number, version), **{"Mcp-Session-Id": self.session})
        elif session != self.session or (method is None and self.behaviour == "lost"):
            reply(request, 404)
        elif method == "tools/list":
            reply(request, 200, result(number, {"tools": [ECHO]}))
        elif method == "tools/call":
            text = {"type": "text", "text": message["params"]["arguments"]["text"]}
            self.call(request, result(number, {"content": [text]}))
        else:
            reply(request, 202)

    def call(self, request: BaseHTTPRequestHandler, answer: bytes) -> None:
        ping = b'data: {"jsonrpc": "2.0", "id": "p", "method": "ping"}\n\n'
        ping_event = b"event: ping\ndata: 2026-11-28\n\n"
        progress = (
            b'id: 1\ndata: {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}\n\n'
        )
        with_request = (
            b": hello\n\n"
            + ping_event
            + b"event: message\n"
            + ping
            + progress
            + b"data: "
            + answer
            + b"\n\n"
        )
        bodies = {
            "mute": b": wait\n\n",
            "cut": b": wait\n\n",
            "flood": (b"data: {}" + b" " * 1000 + b"\n\n") * 2000,
        }
        if self.behaviour == "json":
            reply(request, 200, answer)
            return
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.send_header("Connection", "close")
        request.end_headers()
        with suppress(OSError):  # the client has had enough
            request.wfile.write(bodies.get(self.behaviour, with_request))
        if self.behaviour not in ("cut", "flood"):
            self.ended.wait(PATIENCE_S)
        request.close_connection = True


def result(number: Any, value: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": value}).encode()


def reply(request: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    request.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.ended.set()
    server.http.shutdown()
    server.http.server_close()


def server_at(
    served: Served,
    limits: ServerLimits = LIMITS,
    is_stopped: Callable[[], bool] = lambda: False,
    **options: Any,
) -> ToolServer:
    return ToolServer("far", ToolAddress(served.url, **options), limits, is_stopped)


def test_a_session_has_a_start_and_an_end(served: Served) -> None:
    server = server_at(served, headers={"X-Team": "mine"})
    assert [tool.name for tool in server.start()] == ["echo"]
    assert server.call("echo", {"text": "Grüße"}).text == "Grüße"
    server.close()
    until(lambda: served.requests[-1][0] == "DELETE")
    methods = ["initialize", "notifications/initialized", "tools/list", "tools/call", ""]
    assert [(verb, method) for verb, method, _ in served.requests] == list(
        zip(["POST"] * 4 + ["DELETE"], methods, strict=True)
    )
    first, *later_headers = [headers for _, _, headers in served.requests]
    assert first["accept"] == "application/json, text/event-stream"
    assert "mcp-session-id" not in first
    assert {headers["mcp-session-id"] for headers in later_headers} == {"s-1"}
    assert {headers["mcp-protocol-version"] for headers in later_headers} == {PROTOCOL}
    assert {headers["x-team"] for headers in (first, *later_headers)} == {"mine"}
    assert not server.is_running
    with pytest.raises(ToolServerError, match="is not running"):
        server.call("echo", {"text": "x"})


def test_a_server_may_send_requests_within_an_answer(served: Served) -> None:
    served.behaviour = "events"
    server = server_at(served)
    server.start()
    assert server.call("echo", {"text": "hi"}).text == "hi"
    assert served.pinged == [{"jsonrpc": "2.0", "id": "p", "result": {}}]
    server.close()


def test_a_lost_session_starts_again(served: Served) -> None:
    server = server_at(served)
    server.start()
    served.session = "s-2"
    assert server.call("echo", {"text": "hi"}).text == "hi"
    assert [method for _, method, _ in served.requests].count("initialize") == 2
    served.session = "not sayable\x7f"
    with pytest.raises(ToolServerError, match="names a session that cannot be sent back"):
        server.call("echo", {"text": "hi"})


def test_a_session_lost_within_a_call_does_not_repeat_it(served: Served) -> None:
    served.behaviour = "lost"
    server = server_at(served)
    server.start()
    with pytest.raises(ToolServerError, match="has lost the session"):
        server.call("echo", {"text": "hi"})
    assert [method for _, method, _ in served.requests].count("tools/call") == 1


def test_an_event_may_be_as_long_as_an_answer(served: Served) -> None:
    served.behaviour = "events"
    server = server_at(served, ServerLimits(start_s=PATIENCE_S, call_s=PATIENCE_S))
    server.start()
    assert server.call("echo", {"text": "x" * 1_500_000}).is_cut
    server.close()


def test_a_key_is_not_requested_if_it_cannot_be_sent() -> None:
    assert (
        "not sent unencrypted" in ToolAddress("http://far.example/mcp", key="secret")._key_problem()
    )


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_on_the_same_host_are_followed(served: Served, status: int) -> None:
    served.behaviour = f"redirect {status}"
    for target in ("/mcp/", f"{served.url}/x?y=1"):
        served.target = target
        server = server_at(served)
        server.start()
        assert server.call("echo", {"text": "hi"}).text == "hi"
        server.close()


@pytest.mark.parametrize(
    ("behaviour", "target", "why"),
    [
        (
            "redirect 307",
            "http://127.0.0.1:9/mcp",
            "not followed: give http://127.0.0.1:9/mcp if that is what",
        ),
        ("redirect 307", "http://localhost/mcp", "not followed: give http://localhost/mcp"),
        ("redirect 308", "file:///etc/passwd", "redirects to file, which is not followed"),
        ("redirect 302", "http://[::1", "redirects to an invalid address"),
        ("redirect 303", "/mcp/", r"redirects to a web page \(status 303\)"),
        ("circle", "", "redirects more than 5 times"),
    ],
)
def test_other_redirects_are_reported(
    served: Served, behaviour: str, target: str, why: str
) -> None:
    served.behaviour = behaviour
    served.target = target
    with pytest.raises(ToolServerError, match=why):
        server_at(served, headers={"X-Secret": "s"}).start()


@pytest.mark.parametrize(
    "version", ["2025-06-18\u2603", "\u00e9", "a\r\nX: y", "", "9" * 100, "\ud800"]
)
def test_an_invalid_protocol_version_is_reported(served: Served, version: str) -> None:
    served.behaviour = "version"
    served.version = version
    with pytest.raises(
        ToolServerError, match="tool server far names an invalid version of the protocol: "
    ) as raised:
        server_at(served).start()
    assert str(raised.value).isprintable()


ERROR = (
    b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32603, "message": "the service is '
    b'\x1b[31mdown"}}'
)
REFUSALS = {
    "error of the protocol": (500, ERROR.replace(b"\x1b", b"\\u001b"), "the service is ␛[31mdown"),
    "error of another kind": (
        400,
        b'{"detail": "city is unknown"}',
        "The server answers with status 400: city is unknown",
    ),
    "words": (502, b"no one is there", "The server answers with status 502: no one is there"),
    "page": (503, b"<html>Sorry", "The server answers with status 503"),
    "nothing": (418, b"", "The server answers with status 418"),
    "session of something else": (
        409,
        b'{"error": "no session"}',
        "The server answers with status 409: no session",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refused_call_has_the_servers_words(served: Served, name: str) -> None:
    status, body, words = REFUSALS[name]
    server = server_at(served)
    server.start()
    served.refusals = [(status, body, {"Content-Type": "text/plain"})]
    refused = server.call("echo", {"text": "x"})
    assert (refused.text, refused.is_error) == (words, True)
    assert server.call("echo", {"text": "x"}).text == "x"
    server.close()


def test_a_session_may_be_lost_with_status_400(served: Served) -> None:
    server = server_at(served)
    server.start()
    served.refusals = [
        (400, b'{"error": {"message": "Bad Request: No valid session ID provided"}}', {})
    ]
    assert server.call("echo", {"text": "hi"}).text == "hi"
    assert [method for _, method, _ in served.requests].count("initialize") == 2
    server.close()


def test_a_busy_server_is_asked_again(served: Served) -> None:
    server = server_at(served)
    server.start()
    served.refusals = [(429, b"slow down", {"Retry-After": "0"}), (503, b"", {"Retry-After": "0"})]
    assert server.call("echo", {"text": "hi"}).text == "hi"
    served.refusals = [(429, b"slow down", {"Retry-After": "7200"})]
    busy = server.call("echo", {"text": "hi"})
    assert (busy.text, busy.is_error) == (
        "The server has too many requests: try again in 2 h 0 min",
        True,
    )
    served.refusals = [(429, b'{"error": "slow down"}', {"Retry-After": "0"})] * 4
    assert (
        server.call("echo", {"text": "hi"}).text == "The server answers with status 429: slow down"
    )
    server.close()


def test_refused_notifications_are_ignored(served: Served) -> None:
    served.behaviour = "no notices"
    server = server_at(served)
    assert len(server.start()) == 1
    server.close()


def test_after_a_large_answer_the_server_still_works(served: Served) -> None:
    server = server_at(served)
    server.start()
    assert server.call("echo", {"text": "x" * 1_200_000}).text.startswith(
        "The answer was not read: the server sends more"
    )
    served.behaviour = "flood"
    assert server.call("echo", {"text": "x"}).is_error
    served.behaviour = "json"
    assert server.call("echo", {"text": "x"}).text == "x"
    server.close()


def test_a_result_of_several_megabytes_is_cut(served: Served) -> None:
    server = server_at(served, ServerLimits(start_s=PATIENCE_S, call_s=PATIENCE_S))
    server.start()
    assert server.call("echo", {"text": "x" * 6_000_000}).is_cut
    server.close()


def test_the_key_comes_from_its_variable(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.behaviour = "key"
    setting = ToolServerSetting("far", url=served.url, key_variable="FAR_KEY")
    with pytest.raises(ToolServerError, match="asks for a key"):
        ToolServer("far", make_tool_address(setting), LIMITS).start()
    monkeypatch.setenv("FAR_KEY", "secret")
    assert len(ToolServer("far", make_tool_address(setting), LIMITS).start()) == 1
    monkeypatch.setenv("FAR_KEY", "se\ncret")
    with pytest.raises(ToolServerError, match="characters that keys never have") as error:
        make_tool_address(setting)
    assert "cret" not in str(error.value)


@pytest.mark.parametrize(
    ("behaviour", "why"),
    [
        ("page", r"does not speak the Model Context Protocol \(it sends a web page\)"),
        ("empty", r"accepts the request but sends no answer \(status 204\)"),
        ("brotli", r"compresses its answer in an unknown way \(br\)"),
        ("odd status", "does not speak HTTP"),
        ("endless line", "its headers are too long"),
        ("endless head", "its headers are too long"),
        ("away", "redirects to another address"),
        ("cut", "cannot be reached: .*ended before the answer did"),
    ],
)
def test_an_invalid_answer_ends_the_server_with_one_line(
    served: Served, behaviour: str, why: str
) -> None:
    server = server_at(served)
    if behaviour == "cut":
        server.start()
    served.behaviour = behaviour
    with pytest.raises(ToolServerError, match=why) as error:
        server.call("echo", {"text": "x"}) if server.is_running else server.start()
    assert str(error.value).startswith("tool server far ")
    assert "\n" not in str(error.value)
    assert not server.is_running


def test_a_silent_server_is_given_up(served: Served) -> None:
    served.behaviour = "mute"
    server = server_at(served)
    server.start()
    server._limits = ServerLimits(call_s=0.3)
    with pytest.raises(ToolServerError, match=r"did not answer within 0\.3 s"):
        server.call("echo", {"text": "x"})
    stops: list[bool] = []
    server = server_at(served, is_stopped=lambda: bool(stops))
    server.start()
    threading.Timer(0.2, stops.append, [True]).start()
    with pytest.raises(StoppedError):
        server.call("echo", {"text": "x"})
    assert not server.is_running


def test_private_headers_are_never_sent_unencrypted() -> None:
    address = ToolAddress("http://192.0.2.1/mcp", {"X-Secret": "s"})
    with pytest.raises(ToolServerError, match="unencrypted; use https"):
        ToolServer("far", address, LIMITS).start()


def test_an_unreachable_tool_server_is_reported(served: Served) -> None:
    served.http.shutdown()
    served.http.server_close()
    with pytest.raises(ToolServerError, match="cannot be reached: "):
        server_at(served).start()
