"""Scripted server: it lists one model, and answers each other request with bytes of the test."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

PATIENCE_S = 60.0
MODELS = b'{"data": [{"id": "big", "max_model_len": 4096}, {"id": "small"}]}'
HANG = b"(hang)"
"""Marker in an answer: the server sends nothing more and keeps the connection open."""


def http(
    body: bytes, content_type: str = "text/event-stream", status: str = "200 OK", headers: str = ""
) -> bytes:
    """Return an HTTP answer that ends with its connection."""
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{headers}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body


def event(**delta: Any) -> bytes:
    """Return a chunk of a reply; the last one has a reason in ``finish``."""
    finish = delta.pop("finish", None)
    return (
        b"data: "
        + json.dumps({"choices": [{"delta": delta, "finish_reason": finish}]}).encode()
        + b"\n\n"
    )


def stream(*texts: str, end: bytes | None = None) -> bytes:
    """Return a valid reply, or its beginning."""
    sound = event(finish="stop") + b"data: [DONE]\n\n"
    return http(b"".join(event(content=text) for text in texts) + (sound if end is None else end))


class RawApi:
    """Scripted server with the requests that it has received."""

    def __init__(self, answers: list[bytes], models: bytes, is_listing: bool) -> None:
        self.answers = answers
        self._models = models
        self._is_listing = is_listing
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        self.heads: list[str] = []
        self.bodies: list[Any] = []
        self.is_over = threading.Event()

    def serve(self) -> None:
        """Answer one connection after another."""
        while not self.is_over.is_set():
            with suppress(OSError):
                connection, _ = self._socket.accept()
                with connection:
                    connection.settimeout(PATIENCE_S)
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        reader = connection.makefile("rb")
        head = "".join(
            iter(lambda: reader.readline().decode("latin-1").rstrip("\r\n") + "\n", "\n")
        )
        sizes = [line for line in head.lower().splitlines() if line.startswith("content-length:")]
        body = reader.read(int(sizes[0].partition(":")[2])) if sizes else b""
        self.heads.append(head)
        if head.startswith("GET") and not (self._is_listing and "/v1/models " in head):
            connection.sendall(http(b"", status="404 No"))
            return
        if head.startswith("GET"):
            connection.sendall(http(self._models, "application/json"))
            return
        self.bodies.append(json.loads(body))
        response, hang, _ = self.answers.pop(0).partition(HANG)
        connection.sendall(response)
        if hang:
            reader.read(1)  # until the client goes away

    def close(self) -> None:
        """Stop the server."""
        self.is_over.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def answering(*answers: bytes, models: bytes = MODELS, is_listing: bool = True) -> Iterator[RawApi]:
    """Serve answers in their order. With ``is_listing``, ``/v1/models`` lists a model."""
    api = RawApi(list(answers), models, is_listing)
    thread = threading.Thread(target=api.serve, daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.close()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
