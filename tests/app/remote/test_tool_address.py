"""Servers of tools at an address: what a sound one gives, in every way that the protocol has, and what others cost."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from unittest.mock import Mock

import pytest

from app.mcp.server import PROTOCOL, ServerLimits, ToolServer, ToolServerError
from app.mcp.transport import Fault, StoppedError
from app.program.settings import ToolServerSetting
from app.remote.tool_address import ToolAddress, at_address
from tests.app.server.serving import PATIENCE_S, until

LIMITS = ServerLimits(start_s=PATIENCE_S, call_s=PATIENCE_S, answer_bytes=1 << 20)
ECHO = {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}


class Served:
    """A tiny server; ``how`` says how it answers a call."""

    def __init__(self) -> None:
        self.how = "json"
        self.session = "s-1"
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        """Verb, method and headers of each request, in their order."""
        self.pinged: list[Any] = []
        self.ended = threading.Event()
        served = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                served.answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def do_DELETE(self) -> None:
                served.answer(self, {"method": ""})

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}/mcp"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler, said: dict[str, Any]) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        method, number, session = said.get("method"), said.get("id"), headers.get("mcp-session-id")
        if method is None:
            self.pinged.append(said)
        else:
            self.asked.append((request.command, method, headers))
        if self.how == "key" and headers.get("authorization") != "Bearer secret":
            reply(request, 401, b"no")
        elif self.how == "page":
            reply(request, 200, b"<html>")
        elif self.how == "away":
            reply(request, 307, Location="http://127.0.0.1:9/elsewhere")
        elif method == "initialize":
            version = {"protocolVersion": PROTOCOL, "capabilities": {}}
            reply(request, 200, result(number, version), **{"Mcp-Session-Id": self.session})
        elif session != self.session or (method is None and self.how == "lost"):
            reply(request, 404)
        elif method == "tools/list":
            reply(request, 200, result(number, {"tools": [ECHO]}))
        elif method == "tools/call":
            text = {"type": "text", "text": said["params"]["arguments"]["text"]}
            self.call(request, result(number, {"content": [text]}))
        else:
            reply(request, 202)

    def call(self, request: BaseHTTPRequestHandler, answered: bytes) -> None:
        ping = b'data: {"jsonrpc": "2.0", "id": "p", "method": "ping"}\n\n'
        note = b'id: 1\ndata: {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}\n\n'
        asking = b": hello\n\n" + b"event: message\n" + ping + note + b"data: " + answered + b"\n\n"
        parts = {"mute": b": wait\n\n", "cut": b": wait\n\n", "flood": (b"data: {}" + b" " * 1000 + b"\n\n") * 2000}
        if self.how == "json":
            reply(request, 200, answered)
            return
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.send_header("Connection", "close")
        request.end_headers()
        with suppress(OSError):  # the client has had enough
            request.wfile.write(parts.get(self.how, asking))
        if self.how not in ("cut", "flood"):
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
    found = Served()
    yield found
    found.ended.set()
    found.http.shutdown()
    found.http.server_close()


def server_at(
    served: Served,
    limits: ServerLimits = LIMITS,
    is_stopped: Callable[[], bool] = lambda: False,
    **more: Any,
) -> ToolServer:
    return ToolServer("far", ToolAddress(served.url, **more), limits, is_stopped)


def test_a_session_goes_from_its_beginning_to_its_end(served: Served) -> None:
    server = server_at(served, headers={"X-Team": "mine"})
    assert [tool.name for tool in server.start()] == ["echo"]
    assert server.call("echo", {"text": "Grüße"}).text == "Grüße"
    server.close()
    until(lambda: served.asked[-1][0] == "DELETE")
    methods = ["initialize", "notifications/initialized", "tools/list", "tools/call", ""]
    assert [(verb, method) for verb, method, _ in served.asked] == list(
        zip(["POST"] * 4 + ["DELETE"], methods, strict=True)
    )
    first, *others = [headers for _, _, headers in served.asked]
    assert first["accept"] == "application/json, text/event-stream"
    assert "mcp-session-id" not in first
    assert {headers["mcp-session-id"] for headers in others} == {"s-1"}
    assert {headers["mcp-protocol-version"] for headers in others} == {PROTOCOL}
    assert {headers["x-team"] for headers in (first, *others)} == {"mine"}
    assert not server.is_running
    with pytest.raises(ToolServerError, match="is not running"):
        server.call("echo", {"text": "x"})


def test_an_answer_may_come_as_events_in_which_the_server_asks(served: Served) -> None:
    served.how = "events"
    server = server_at(served)
    server.start()
    assert server.call("echo", {"text": "hi"}).text == "hi"
    assert served.pinged == [{"jsonrpc": "2.0", "id": "p", "result": {}}]
    server.close()


def test_a_session_that_is_lost_begins_again(served: Served) -> None:
    server = server_at(served)
    server.start()
    served.session = "s-2"
    assert server.call("echo", {"text": "hi"}).text == "hi"
    assert [method for _, method, _ in served.asked].count("initialize") == 2
    served.session = "not sayable\x7f"
    with pytest.raises(ToolServerError, match="names its session in a way that cannot be said again"):
        server.call("echo", {"text": "hi"})


def test_a_session_lost_within_a_call_does_not_repeat_it(served: Served) -> None:
    served.how = "lost"
    server = server_at(served)
    server.start()
    with pytest.raises(ToolServerError, match="has lost the session"):
        server.call("echo", {"text": "hi"})
    assert [method for _, method, _ in served.asked].count("tools/call") == 1


def test_an_event_may_be_as_long_as_an_answer(served: Served) -> None:
    served.how = "events"
    server = server_at(served, ServerLimits(start_s=PATIENCE_S, call_s=PATIENCE_S))
    server.start()
    assert server.call("echo", {"text": "x" * 1_500_000}).is_cut
    server.close()


def test_a_key_is_not_asked_for_where_it_is_not_sent() -> None:
    address = ToolAddress("http://far.example/mcp", key="secret")
    with pytest.raises(Fault, match="not sent unencrypted"):
        address._check(Mock(status=401))


def test_the_key_comes_from_its_variable(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.how = "key"
    setting = ToolServerSetting("far", url=served.url, key_variable="FAR_KEY")
    with pytest.raises(ToolServerError, match="asks for a key"):
        ToolServer("far", at_address(setting), LIMITS).start()
    monkeypatch.setenv("FAR_KEY", "secret")
    assert len(ToolServer("far", at_address(setting), LIMITS).start()) == 1
    monkeypatch.setenv("FAR_KEY", "se\ncret")
    with pytest.raises(ToolServerError, match="characters that no key has") as told:
        at_address(setting)
    assert "cret" not in str(told.value)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("page", "does not speak the Model Context Protocol"),
        ("away", "redirects to another address"),
        ("cut", "cannot be asked: .*ended before the answer did"),
        ("flood", "says more than 1 MB at once"),
    ],
)
def test_an_unsound_answer_ends_the_server_in_one_line(served: Served, how: str, why: str) -> None:
    server = server_at(served)
    if how in ("cut", "flood"):
        server.start()
    served.how = how
    with pytest.raises(ToolServerError, match=why) as told:
        server.call("echo", {"text": "x"}) if server.is_running else server.start()
    assert str(told.value).startswith("tool server far ")
    assert "\n" not in str(told.value)
    assert not server.is_running


def test_a_server_that_does_not_answer_is_not_waited_for(served: Served) -> None:
    served.how = "mute"
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


def test_nothing_private_goes_to_another_machine_unencrypted() -> None:
    address = ToolAddress("http://192.0.2.1/mcp", {"X-Secret": "s"})
    with pytest.raises(ToolServerError, match="unencrypted; use https"):
        ToolServer("far", address, LIMITS).start()


def test_a_server_that_is_not_there_is_told(served: Served) -> None:
    served.http.shutdown()
    served.http.server_close()
    with pytest.raises(ToolServerError, match="cannot be asked: "):
        server_at(served).start()
