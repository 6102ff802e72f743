"""Tests of hostile clients: nothing hangs or grows, and the next request is answered."""

from __future__ import annotations

import json
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from app.forms.process import FormLimits
from app.server import guard, http_server, open_requests, reply_writer, transfer
from tests.app.fake_engine import Gate, Script
from tests.app.forms.form_processes import compiling
from tests.app.server.serving import Serving, serving, until

QUESTION = [{"role": "user", "content": "hi"}]
BODY = json.dumps({"messages": QUESTION, "stream": True}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
REQUEST = HEAD % len(BODY) + BODY


def received(connection: socket.socket) -> bytes:
    """Return everything that arrives until the server closes the connection."""
    received_bytes = b""
    with suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received_bytes += piece
    return received_bytes


def cut(connection: socket.socket) -> None:
    """Close a connection abruptly: unsent data is dropped, and the server gets a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def send_request(server: Serving, request: bytes = REQUEST) -> socket.socket:
    """Return a connection on which a request was sent."""
    connection = server.raw()
    connection.sendall(request)
    return connection


def n_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def gated(gate: Gate) -> Script:
    return Script(replies=[["word "] * 400], token_gate=gate)


@pytest.mark.parametrize(
    ("path", "is_streamed"),
    [
        ("/v1/chat/completions", True),
        ("/v1/completions", False),
        ("/v1/responses", True),
        ("/v1/responses", False),
    ],
)
def test_a_leaving_client_stops_the_computation(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    gate: Gate,
    path: str,
    is_streamed: bool,
) -> None:
    gated = Script(replies=[["word "] * 400], token_gate=gate)
    with serving(monkeypatch, gated) as server:
        fields = {"input": "hi"} if "responses" in path else {"prompt": "hi", "messages": QUESTION}
        body = json.dumps({**fields, "stream": is_streamed}).encode()
        connection = send_request(
            server, HEAD.replace(b"/v1/chat/completions", path.encode()) % len(body) + body
        )
        gate.allow(3)
        until(gate.waiting.is_set)
        cut(connection)
        # The gate stays closed, so the request has been cancelled.
        until(lambda: server.metric("requests_running") == 0)
        assert server.metric("clients_gone_total") == 1
        assert server.metric("generated_tokens_total") == 3
        counter_line = f'jalopy_requests_total{{route="{path}",status="499"}} 1\n'
        until(lambda: counter_line in server.get("/metrics").text)
    assert f"POST {path} 499 (client left)\n" in capsys.readouterr().err


def test_a_client_leaving_during_prefill_stops_it(
    monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    with serving(monkeypatch, Script(prefill_gate=gate)) as server:
        connection = send_request(server)
        until(gate.waiting.is_set)
        cut(connection)
        until(lambda: server.metric("requests_running") == 0)
        assert server.script.opened[0].sessions[0].tokens == []
        until(lambda: 'status="499"} 1' in server.get("/metrics").text)


@pytest.mark.slow
def test_a_leaving_client_ends_the_compilation_of_its_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        reply_writer, "Forms", partial(reply_writer.Forms, limits=FormLimits(compile_cpu_s=600.0))
    )
    form = {"type": "json_object", "schema": {"type": "integer", "multipleOf": 1000003}}
    with serving(monkeypatch) as server:
        for is_streamed in (True, False):
            body = json.dumps(
                {"messages": QUESTION, "stream": is_streamed, "response_format": form}
            ).encode()
            connection = send_request(server, HEAD % len(body) + body)
            until(lambda: bool(compiling()))
            cut(connection)
            until(lambda: not compiling())
            assert server.chat().status_code == 200
        assert server.metric("clients_gone_total") == 2


@pytest.mark.slow
def test_a_form_that_crashes_its_process_is_refused(shared: Serving) -> None:
    chain = (f"r{index}: r{index + 1}" for index in range(3000))
    rules = "\n".join(["start: r0", *chain, 'r3000: "a"'])
    for is_streamed in (True, False):
        refused = shared.chat(grammar=rules, stream=is_streamed)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"], error["code"]) == (
            400,
            "grammar",
            "invalid_value",
        )
        assert error["message"].startswith("grammar cannot be used: it is nested too deeply")
        assert shared.chat().status_code == 200


def test_a_client_leaving_the_queue_is_never_answered(
    monkeypatch: pytest.MonkeyPatch, gated: Script, gate: Gate
) -> None:
    with serving(monkeypatch, gated) as server:
        first = send_request(server)
        until(gate.waiting.is_set)
        second = send_request(server)
        until(lambda: server.metric("requests_waiting") == 1)
        cut(second)
        until(lambda: server.metric("requests_waiting") == 0)
        cut(first)
        until(lambda: server.metric("requests_running") == 0)
        assert len(server.script.opened[0].sessions[0].samplings) == 1
        until(lambda: 'status="499"} 2' in server.get("/metrics").text)


def test_requests_beyond_the_queue_are_refused(
    monkeypatch: pytest.MonkeyPatch, gated: Script, gate: Gate
) -> None:
    with serving(monkeypatch, gated, max_waiting=2) as server:
        assert (
            server.chat(n=4).json()["error"]["code"] == "queue_full"
        )  # none of the four requests waits
        until(lambda: server.metric("requests_waiting") == server.metric("requests_running") == 0)
        connections = [send_request(server)]
        until(gate.waiting.is_set)
        connections += [send_request(server), send_request(server)]
        until(lambda: server.metric("requests_waiting") == 2)
        refused = server.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
        assert refused.headers["retry-after"] == "2"
        gate.open()
        assert b"HTTP/1.1 200 OK" in connections[0].recv(1000)
        for connection in connections:
            cut(connection)
        until(lambda: server.chat(max_tokens=1).status_code == 200)


def test_a_slow_reader_is_cut_and_blocks_nobody(
    monkeypatch: pytest.MonkeyPatch, script: Script
) -> None:
    monkeypatch.setattr(guard, "SEND_PATIENCE_S", 0.3)
    script.replies = [["x" * 200_000] * 100]
    script.n_ctx = 512
    with serving(monkeypatch, script) as server:
        slow = server.raw()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(REQUEST)
        assert slow.recv(10).startswith(b"HTTP/1.1")
        assert server.chat(max_tokens=1).status_code == 200
        until(lambda: server.n_connections == 0)
        slow.close()


def test_a_silent_stream_sends_signs_of_life(
    monkeypatch: pytest.MonkeyPatch, gated: Script
) -> None:
    monkeypatch.setattr("app.server.routes.KEEP_ALIVE_S", 0.01)
    with serving(monkeypatch, gated) as server:
        connection = send_request(server)
        received_bytes = b""
        while received_bytes.count(b": still here\n\n") < 3:
            received_bytes += connection.recv(4096)
        cut(connection)


WAITING: list[tuple[str, dict[str, object], bytes]] = [
    ("/v1/chat/completions", {"messages": QUESTION}, b": still here\n\n"),
    ("/v1/chat/completions", {"messages": QUESTION, "n": 3}, b": still here\n\n"),
    ("/v1/completions", {"prompt": "hi"}, b": still here\n\n"),
    ("/v1/responses", {"input": "hi"}, b"event: response.in_progress\n"),
    ("/v1/messages", {"messages": QUESTION}, b"event: ping\n"),
    ("/api/chat", {"messages": QUESTION}, b'"content":""},"done":false}\n'),
    ("/api/generate", {"prompt": "hi"}, b'"response":"","done":false}\n'),
]


@pytest.mark.parametrize(("path", "fields", "sign"), WAITING)
def test_a_waiting_stream_sends_signs_of_life(
    monkeypatch: pytest.MonkeyPatch,
    gated: Script,
    gate: Gate,
    path: str,
    fields: dict[str, object],
    sign: bytes,
) -> None:
    monkeypatch.setattr("app.server.routes.QUEUE_PATIENCE_S", 0.01)
    monkeypatch.setattr("app.server.routes.KEEP_ALIVE_S", 0.01)
    with serving(monkeypatch, gated) as server:
        first = send_request(server)
        until(gate.waiting.is_set)
        body = json.dumps(
            {**fields, "stream": True, "max_tokens": 2, "options": {"num_predict": 2}}
        ).encode()
        waiting = send_request(
            server, HEAD.replace(b"/v1/chat/completions", path.encode()) % len(body) + body
        )
        received_bytes = b""
        while received_bytes.count(sign) < 3:
            piece = waiting.recv(4096)
            assert piece
            received_bytes += piece
        assert received_bytes.startswith(b"HTTP/1.1 200 OK")
        assert b"word" not in received_bytes
        gate.open()
        while b"word" not in received_bytes:
            piece = waiting.recv(4096)
            assert piece
            received_bytes += piece
        cut(first)
        cut(waiting)


def test_an_error_after_waiting_is_an_event(
    monkeypatch: pytest.MonkeyPatch, gated: Script, gate: Gate
) -> None:
    monkeypatch.setattr("app.server.routes.QUEUE_PATIENCE_S", 0.01)
    with serving(monkeypatch, gated) as server:
        first = send_request(server)
        until(gate.waiting.is_set)
        body = json.dumps({"prompt": "word " * 1000, "stream": True}).encode()
        waiting = send_request(server, HEAD.replace(b"/chat/", b"/") % len(body) + body)
        assert waiting.recv(15) == b"HTTP/1.1 200 OK"
        cut(first)
        received_bytes = b""
        while b'"code":"context_length_exceeded"' not in received_bytes:
            piece = waiting.recv(4096)
            assert piece
            received_bytes += piece
        cut(waiting)


def test_a_shutdown_ends_running_and_waiting_requests(
    monkeypatch: pytest.MonkeyPatch, gated: Script
) -> None:
    with serving(monkeypatch, gated, max_at_once=2) as server, ThreadPoolExecutor(1) as pool:
        streamed = send_request(server)
        complete = pool.submit(server.chat)
        until(lambda: server.metric("requests_running") == 2)
        waiting = send_request(server)
        until(lambda: server.metric("requests_waiting") == 1)
        server.end()
        assert b'"code":"shutting_down"' in received(streamed)
        assert complete.result(60).json()["error"]["code"] == "shutting_down"
        response = received(waiting)
        # The stream may have started.
        assert b"503 Service Unavailable" in response or b'"code":"shutting_down"' in response


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 50, b"400"),
        (b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n", b"403"),
        (b"GET /health HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.0\r\n\r\n", b"403"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", b"400"),
        (
            (
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
                b"Content-Length: 2\r\n\r\n"
            ),
            b"400",
        ),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 400_000, b"400"),
        (b"GET /%ff%00%0d HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"404"),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"400"),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"404"),
        (
            (
                b"GET /health HTTP/1.1\r\nHost: [::1]\r\nUpgrade: websocket\r\n"
                b"Connection: upgrade, close\r\n\r\n"
            ),
            b"200",
        ),
        (b"GET /health HTTP/1.1\r\nHost: \xff\xfe\r\nConnection: close\r\n\r\n", b"403"),
        (
            (
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"
            ),
            b"400",
        ),
    ],
)
def test_invalid_http_is_refused(
    shared: Serving, capsys: pytest.CaptureFixture[str], sent: bytes, status: bytes
) -> None:
    assert received(send_request(shared, sent)).split()[1] == status
    assert shared.get("/health").status_code == 200
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert "fault" not in err


ONE_MORE = b"GET /props HTTP/1.1\r\nHost: localhost\r\n\r\n"
TWO_LENGTHS = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n%b" + ONE_MORE


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (
            b"Content-Length: 5\r\nTransfer-Encoding: chunked",
            b'f\r\n{"content":"hi"}\r\n0\r\n\r\n',
            b"400",
        ),
        (
            b"Content-Length: 5\r\nTransfer-Encoding: chunked",
            b'10\r\n{"content":"hi"}\r\n0\r\n\r\n',
            b"200",
        ),
        (
            b"Transfer-Encoding: Chunked\r\ncontent-length: 21",
            b'10\r\n{"content":"hi"}\r\n0\r\n\r\n',
            b"200",
        ),
        (
            b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\nConnection: keep-alive",
            b"2\r\n{}\r\n0\r\n\r\n",
            b"400",
        ),
        (b"Content-Length: 16\r\nContent-Length: 17", b'{"content":"hi"}', b"400"),
        (b"Content-Length: 16, 17", b'{"content":"hi"}', b"400"),
        (b"Content-Length: +16", b'{"content":"hi"}', b"400"),
        (b"Content-Length: 16\r\nTransfer-Encoding: identity", b'{"content":"hi"}', b"400"),
        (b"Transfer-Encoding: chunked, gzip", b'10\r\n{"content":"hi"}\r\n0\r\n\r\n', b"400"),
        (b"Transfer-Encoding: gzip, chunked", b'10\r\n{"content":"hi"}\r\n0\r\n\r\n', b"400"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", b"0\r\n\r\n", b"400"),
        (b"Transfer-Encoding : chunked", b"0\r\n\r\n", b"400"),
    ],
)
def test_an_ambiguous_request_closes_its_connection(
    shared: Serving, headers: bytes, body: bytes, status: bytes
) -> None:
    received_bytes = received(send_request(shared, TWO_LENGTHS % (headers, body)))
    assert received_bytes.split()[1] == status
    assert received_bytes.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in received_bytes.lower()


def test_a_body_in_tiny_chunks_is_refused_early(shared: Serving) -> None:
    head = (
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        b"Connection: close\r\n\r\n"
    )
    text = b'{"content":"' + b"a" * 900 + b'"}'
    small = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
    assert received(send_request(shared, head + small)).split()[1] == b"200"
    connection = send_request(shared, head)
    with suppress(ConnectionError):
        connection.sendall(b"1\r\n \r\n" * 200_000)
    assert received(connection)[:12] in (b"HTTP/1.1 400", b"")
    assert shared.get("/health").status_code == 200


HALVES = [
    b"POST /v1/chat/completions HT",
    HEAD % 5000 + b"{",
    HEAD.replace(b"/v1/chat/completions", b"/api/chat") % 5000 + b"{",
    HEAD.replace(b"/v1/chat/completions", b"/health") % 5000 + b"{",
    HEAD.replace(b"/v1/chat/completions", b"/v1/models") % 5000 + b"{",
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
]


def test_incomplete_requests_block_nobody(shared: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_requests, "MAX_REQUESTS", 2)
    for half in HALVES:
        connections = [send_request(shared, half) for _ in range(10)]
        for _ in range(5):  # waiting connections keep sending bytes slowly
            for connection in connections:
                connection.sendall(b" ")
            assert shared.get("/health").status_code == 200
            assert shared.get("/v1/models").status_code == 200
            assert shared.chat(max_tokens=1).status_code == 200
        for connection in connections:
            connection.close()


def test_health_answers_while_all_places_are_taken(
    monkeypatch: pytest.MonkeyPatch, gated: Script, gate: Gate
) -> None:
    monkeypatch.setattr(open_requests, "MAX_REQUESTS", 1)
    with serving(monkeypatch, gated) as server:
        first = send_request(server)
        until(gate.waiting.is_set)
        refused = server.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "too_many_requests")
        assert server.get("/health").status_code == 200
        cut(first)
        until(lambda: server.get("/v1/models").status_code == 200)


def test_the_oldest_incomplete_body_is_cut(
    shared: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_requests, "MAX_BYTES", 100_000)
    path = b"/tokenize"
    large = json.dumps({"content": "a" * 60_000}).encode()
    half = HEAD.replace(b"/v1/chat/completions", path) % len(large) + large[:-1]
    first = send_request(shared, half)
    second = send_request(shared, half)
    assert received(first) == b""
    second.sendall(large[-1:])
    assert second.recv(15) == b"HTTP/1.1 200 OK"
    second.close()


def test_a_huge_body_is_refused_and_dropped(shared: Serving) -> None:
    answer = shared.post("/v1/chat/completions", b" " * (transfer.MAX_BODY_BYTES + 1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
    assert answer.headers["connection"] == "close"


def test_an_endless_body_is_cut(shared: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MAX_DISCARDED_BYTES", 1 << 20)
    connection = send_request(
        shared, b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    n_sent = 0
    with suppress(ConnectionError):
        while n_sent < 100_000:
            connection.sendall(chunk)
            n_sent += 1
    assert n_sent < 100_000


def test_slow_and_silent_clients_are_cut(shared: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_PATIENCE_S", 0.2)
    for began in (b"", b"GET /hea", HEAD % 100 + b"{"):
        assert received(send_request(shared, began)) == b""
    later = send_request(shared, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    received_bytes = b""
    while not received_bytes.endswith(b"}"):
        received_bytes += later.recv(1000)
    assert b"200 OK" in received_bytes
    later.sendall(b"GET")
    assert received(later) == b""


def test_a_flood_of_connections_blocks_nobody(
    gated: Script, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 20)
    with serving(monkeypatch, gated) as server, ThreadPoolExecutor(1) as pool:
        files_before = n_open_files()
        answer = pool.submit(server.chat, max_tokens=3)
        until(gate.waiting.is_set)
        flood = [server.raw() for _ in range(60)]
        assert server.get("/health").status_code == 200
        until(lambda: server.n_connections <= 20)
        gate.open()
        assert answer.result(60).status_code == 200
        for connection in flood:
            connection.close()
        until(lambda: n_open_files() <= files_before)


@pytest.mark.smoke
@pytest.mark.slow
def test_a_flood_of_requests_is_answered_or_refused(
    shared: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(open_requests, "MAX_REQUESTS", 3)
    with ThreadPoolExecutor(8) as pool:
        requests = [pool.submit(shared.chat, stream=n % 2 == 0) for n in range(40)]
        statuses = {request.result().status_code for request in requests}
    assert {200} <= statuses <= {200, 503}
    assert shared.metric("requests_running") == shared.metric("requests_waiting") == 0
    assert "Traceback" not in capsys.readouterr().err


def test_requests_cut_at_any_byte_leave_no_files_or_threads(server: Serving) -> None:
    server.chat()
    files_before = n_open_files()
    n_threads = threading.active_count()
    server.script.replies = [["word "] * 50]
    for length in range(0, len(REQUEST), 5):
        cut(send_request(server, REQUEST[:length]))
    for _ in range(10):
        connection = send_request(server)
        connection.recv(100)
        cut(connection)
    until(lambda: n_open_files() <= files_before)
    until(lambda: server.metric("requests_running") == server.metric("requests_waiting") == 0)
    until(lambda: threading.active_count() <= n_threads)
    assert server.chat().status_code == 200
