"""A hub on 127.0.0.1 that answers like Hugging Face and misbehaves on demand.

    python -m tests.app.models.downloads.local_hub FILE OWNER/REPO [MB/S]  # serves one file

    with LocalHub() as hub:
        hub.add("someone/Tiny-GGUF", "tiny-Q8_0.gguf", content)
        hub.faults.append(cut(after_bytes=1000))      # the next answer with file bytes ends early
        ...                                           # hub.requests lists the requests

The answers have the recorded formats of the real hub (``recorded/``). Files come from a second
server, as from a content network. Tokens must not be sent to this other host.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_RECORDED = Path(__file__).parent / "recorded"
REPOSITORY_SHAPE: dict[str, Any] = json.loads((_RECORDED / "repository.json").read_text())
ANSWER_SHAPES: dict[str, Any] = json.loads((_RECORDED / "answers.json").read_text())
_MODEL_KEYS = ("gguf", "cardData")
"""Keys that describe the recorded model; the repositories of tests have other ones or none."""


@dataclass(frozen=True)
class Request:
    """Request of a client."""

    server: str
    path: str
    headers: dict[str, str]


@dataclass
class Answer:
    """Answer before it is sent; faults change it."""

    status: int
    headers: dict[str, str]
    body: bytes
    cut_after: int | None = None
    is_endless: bool = False
    does_stall: bool = False
    goes_on: bool = False
    piece_bytes: int = 0
    pause_s: float = 0.0


Fault = Callable[[Answer], None]


def _with(**values: Any) -> Fault:
    return lambda answer: vars(answer).update(values)


def recorded_answer(name: str, **values: object) -> Answer:
    """Return a recorded answer of the real hub, with these values in its text."""
    shape = ANSWER_SHAPES[name]

    def filled(text: str) -> str:
        for key, value in values.items():
            text = text.replace(f"{{{key}}}", str(value))
        return text

    body = shape["body"]
    raw = filled(body if isinstance(body, str) else json.dumps(body)).encode()
    headers = {key: filled(value) for key, value in shape["headers"].items()}
    return Answer(shape["status"], {**headers, "Content-Length": str(len(raw))}, raw)


def recorded(name: str, **values: object) -> Fault:
    """Send a recorded answer instead."""
    recorded_reply = recorded_answer(name, **values)
    return _with(
        status=recorded_reply.status, headers=recorded_reply.headers, body=recorded_reply.body
    )


def cut(after_bytes: int) -> Fault:
    """Close the connection in the middle of the body."""
    return _with(cut_after=after_bytes)


def slow(piece_bytes: int, pause_s: float) -> Fault:
    """Send the body in pieces, each after a pause."""
    return _with(piece_bytes=piece_bytes, pause_s=pause_s)


stalls = _with(does_stall=True)
"""Fault: send half of the body, then nothing until the hub is closed."""
waits = _with(does_stall=True, goes_on=True)
"""Fault: send half of the body, and the rest once the hub's ``stalled`` is set."""


def status(code: int, **headers: str) -> Fault:
    """Answer with an HTTP status and no file."""

    stated = {
        "Content-Length": "2",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return _with(status=code, body=b"no", headers=stated)


def ignore_range(answer: Answer) -> None:
    """Ignore the requested range and send the whole file."""
    full: bytes = getattr(answer, "full")  # noqa: B009 - set by the server for this very fault
    answer.status = 200
    answer.body = full
    answer.headers.pop("Content-Range", None)
    answer.headers["Content-Length"] = str(len(full))


def with_headers(**headers: str) -> Fault:
    """Change headers of the answer."""

    def change(answer: Answer) -> None:
        answer.headers.update({name.replace("_", "-"): value for name, value in headers.items()})

    return change


def other_bytes(answer: Answer) -> None:
    """Send as many other bytes that begin like a model."""
    answer.body = (b"GGUF" if answer.status == 200 else b"") + b"\x55" * len(answer.body)
    answer.body = answer.body[: int(answer.headers["Content-Length"])]


def web_page(answer: Answer) -> None:
    """Answer like a captive portal, with success and HTML."""
    answer.status = 200
    answer.body = b"<!DOCTYPE html><html>Please log in</html>"
    answer.headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Length": str(len(answer.body)),
    }


def web_page_without_type(answer: Answer) -> None:
    """Answer with HTML, but without its content type."""
    size = int(answer.headers["Content-Length"])
    answer.body = b"<html>".ljust(size)


def endless(answer: Answer) -> None:
    """Send a body that never ends."""
    answer.headers.pop("Content-Length", None)
    answer.is_endless = True


def redirect(target: str) -> Fault:
    """Redirect to another address."""
    return status(302, Location=target)


@dataclass
class LocalHub:
    """Hub with its content server."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    """False SHA-256 hashes that the hub states, by path."""
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Additional fields of the hub's description, by repository."""
    in_git: set[str] = field(default_factory=set)
    """Paths of files stored directly in git, which have no SHA-256."""
    git_names: dict[str, str] = field(default_factory=dict)
    """False git hashes that the hub states, by path."""
    siblings: list[Any] = field(default_factory=list)
    """Additional entries of the file list, sent unchanged."""
    faults: list[Fault] = field(default_factory=list)
    """Faults of the next responses with file bytes, one for each response."""
    hub_faults: list[Fault] = field(default_factory=list)
    """Faults of the next responses of the hub, one for each response."""
    renamed: dict[str, str] = field(default_factory=dict)
    """New names of renamed repositories, by old name."""
    requests: list[Request] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    """Event that releases stalled and waiting answers."""
    cut_stalled: bool = False
    """Whether released answers are cut off instead of sent whole."""
    tls: dict[str, ssl.SSLContext] = field(default_factory=dict)
    """TLS contexts of the servers "hub" and "content"; a server without one uses plain HTTP."""

    def __enter__(self) -> LocalHub:
        self._hub = _serve(self, "hub")
        self._content = _serve(self, "content")
        return self

    def __exit__(self, *_: object) -> None:
        self.stalled.set()
        for server in (self._hub, self._content):
            server.shutdown()
            server.server_close()

    @property
    def address(self) -> str:
        """Address of the hub, as a value for HF_ENDPOINT."""
        return f"{self._scheme('hub')}://127.0.0.1:{self._hub.server_address[1]}"

    @property
    def content_address(self) -> str:
        """Requests to the content server."""
        return f"{self._scheme('content')}://localhost:{self._content.server_address[1]}"

    def _scheme(self, server: str) -> str:
        return "https" if server in self.tls else "http"

    def add(self, repository: str, path: str, content: bytes) -> str:
        """Add a file to a repository and return its SHA-256."""
        self.files.setdefault(repository, {})[path] = content
        return hashlib.sha256(content).hexdigest()

    def requests_to(self, server: str) -> list[Request]:
        """Return the requests to one of the servers."""
        return [request for request in self.requests if request.server == server]

    def answer(self, server: str, path: str, headers: dict[str, str]) -> Answer:
        """Return the answer of a correct server."""
        segments = unquote(urlsplit(path).path).strip("/").split("/")
        if server == "content":
            return self._bytes_of("/".join(segments[:2]), "/".join(segments[2:]), headers)
        for old_name, new_name in self.renamed.items():
            if old_name in path:
                return recorded_answer("moved", target=path.replace(old_name, new_name))
        if segments[:2] == ["api", "models"] and len(segments) == 6:
            return self._describe("/".join(segments[2:4]))
        if len(segments) >= 5 and segments[2] == "resolve":
            return self._resolve("/".join(segments[:2]), "/".join(segments[4:]))
        return recorded_answer("missing")

    def _resolve(self, repository: str, path: str) -> Answer:
        if path not in self.files.get(repository, {}):
            return recorded_answer("no-entry")
        content = self.files[repository][path]
        target = f"{self.content_address}/{repository}/{path}?signature=secret"
        sha256 = self.hashes.get(path, hashlib.sha256(content).hexdigest())
        return recorded_answer(
            "resolved", target=target, commit=COMMIT, size=len(content), sha256=sha256
        )

    def _describe(self, repository: str) -> Answer:
        if repository not in self.files:
            return recorded_answer("missing")
        siblings: list[Any] = [
            {"rfilename": "README.md", "size": 12, "blobId": "f" * 40},
            *self.siblings,
        ]
        for path, content in self.files[repository].items():
            sha256 = self.hashes.get(path, hashlib.sha256(content).hexdigest())
            lfs = {"sha256": sha256, "size": len(content), "pointerSize": 135}
            blob: dict[str, Any] = {
                "size": len(content),
                "blobId": "e" * 40,
                "lfs": lfs,
                "xetHash": _xet_hash(sha256),
            }
            if path in self.in_git:
                digest = hashlib.sha1(
                    b"blob %d\0" % len(content) + content, usedforsecurity=False
                ).hexdigest()
                blob = {"size": len(content), "blobId": self.git_names.get(path, digest)}
            siblings.append({"rfilename": path, **blob})
        shape = {key: value for key, value in REPOSITORY_SHAPE.items() if key not in _MODEL_KEYS}
        identity = {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings}
        content = {**shape, **identity, **self.extra.get(repository, {})}
        body = json.dumps(content).encode()
        return Answer(
            200, {"Content-Type": "application/json", "Content-Length": str(len(body))}, body
        )

    def _bytes_of(self, repository: str, path: str, headers: dict[str, str]) -> Answer:
        content = self.files[repository][path]
        common = recorded_answer(
            "content", xet=_xet_hash(hashlib.sha256(content).hexdigest())
        ).headers
        etag = common["ETag"]
        requested_range = headers.get("range", "")
        if requested_range and headers.get("if-range", etag) == etag:
            start = int(requested_range.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                return Answer(416, {"Content-Length": "0"}, b"")
            content_range = f"bytes {start}-{len(content) - 1}/{len(content)}"
            body = content[start:]
            answer = Answer(
                206,
                {**common, "Content-Range": content_range, "Content-Length": str(len(body))},
                body,
            )
        else:
            answer = Answer(200, {**common, "Content-Length": str(len(content))}, content)
        answer.full = content  # type: ignore[attr-defined]
        return answer


def _xet_hash(sha256: str) -> str:
    """Return a hash of as many digits that is not a hash of the content."""
    return hashlib.sha256(sha256.encode()).hexdigest()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect, as they do if they do not trust the certificate."""


def _serve(hub: LocalHub, name: str) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {key.lower(): value for key, value in self.headers.items()}
            hub.requests.append(Request(name, self.path, headers))
            answer = hub.answer(name, self.path, headers)
            faults = hub.faults if name == "content" else hub.hub_faults
            if faults:
                faults.pop(0)(answer)
            _send(self, answer, hub)

        def log_message(self, *_: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    if name in hub.tls:
        # The handshake happens in the connection's thread when the first byte is read.
        server.socket = hub.tls[name].wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    server.daemon_threads = True
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    return server


def _send(handler: BaseHTTPRequestHandler, answer: Answer, hub: LocalHub) -> None:
    handler.close_connection = True
    handler.send_response(answer.status)
    for key, value in {**answer.headers, "Connection": "close"}.items():
        handler.send_header(key, value)
    handler.end_headers()
    try:
        if answer.does_stall:
            handler.wfile.write(answer.body[: len(answer.body) // 2])
            handler.wfile.flush()
            hub.stalled.wait(300)
            if answer.goes_on and not hub.cut_stalled:
                handler.wfile.write(answer.body[len(answer.body) // 2 :])
        elif answer.is_endless:
            handler.wfile.write(answer.body)
            while not hub.stalled.is_set():
                handler.wfile.write(bytes(1 << 16))
        elif answer.piece_bytes:
            for start in range(0, len(answer.body), answer.piece_bytes):
                hub.stalled.wait(answer.pause_s)
                handler.wfile.write(answer.body[start : start + answer.piece_bytes])
        else:
            handler.wfile.write(answer.body[: answer.cut_after])
    except OSError:
        return


def main(file: Path, repository: str, mb_per_s: float) -> None:
    """Serve one file at a limited speed until interrupted."""
    with LocalHub() as hub:
        hub.add(repository, file.name, file.read_bytes())
        if mb_per_s:
            hub.faults += [slow(int(mb_per_s * 1e5), 0.1)] * 1000
        print(f"HF_ENDPOINT={hub.address}", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
