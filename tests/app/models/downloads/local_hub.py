"""A hub on 127.0.0.1 that says what Hugging Face says and misbehaves on demand.

    python -m tests.app.models.downloads.local_hub FILE OWNER/REPO [MB/S]  # serves one file

    with LocalHub() as hub:
        hub.add("someone/Tiny-GGUF", "tiny-Q8_0.gguf", content)
        hub.faults.append(Cut(after_bytes=1000))      # the next answer with a file's bytes ends early
        ...                                           # hub.requests says what was asked for

What it says has the recorded shapes of the real one (``recorded/``). Files come from a second
server, as they do from a content network: another host, as far as tokens are concerned.
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
_OF_ITS_MODEL = ("gguf", "cardData")
"""Keys that say what the recorded model is: a repository of a test's own has others, or none."""


@dataclass(frozen=True)
class Request:
    """A client's request."""

    server: str
    path: str
    headers: dict[str, str]


@dataclass
class Answer:
    """An answer before it is sent; faults change it."""

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
    """Return an answer as the real hub gives it, with these values in its text."""
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
    """Give a recorded answer instead."""
    other = recorded_answer(name, **values)
    return _with(status=other.status, headers=other.headers, body=other.body)


def cut(after_bytes: int) -> Fault:
    """Close the connection in the middle of the body."""
    return _with(cut_after=after_bytes)


def slow(piece_bytes: int, pause_s: float) -> Fault:
    """Send it in pieces, each after a pause."""
    return _with(piece_bytes=piece_bytes, pause_s=pause_s)


stalls = _with(does_stall=True)
"""Send half and then nothing, until the hub is taken down."""
waits = _with(does_stall=True, goes_on=True)
"""Send half, and the other half once the hub's ``stalled`` is set."""


def status(code: int, **headers: str) -> Fault:
    """Refuse."""

    stated = {
        "Content-Length": "2",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return _with(status=code, body=b"no", headers=stated)


def whole(answer: Answer) -> None:
    """Ignore the range that was asked for."""
    full: bytes = getattr(answer, "full")  # noqa: B009 - set by the server for this very fault
    answer.status = 200
    answer.body = full
    answer.headers.pop("Content-Range", None)
    answer.headers["Content-Length"] = str(len(full))


def with_headers(**headers: str) -> Fault:
    """Lie in the headers."""

    def change(answer: Answer) -> None:
        answer.headers.update({name.replace("_", "-"): value for name, value in headers.items()})

    return change


def other_bytes(answer: Answer) -> None:
    """Send as many bytes of something else that begins like a model."""
    answer.body = (b"GGUF" if answer.status == 200 else b"") + b"\x55" * len(answer.body)
    answer.body = answer.body[: int(answer.headers["Content-Length"])]


def web_page(answer: Answer) -> None:
    """Answer like a captive portal: with success and HTML."""
    answer.status = 200
    answer.body = b"<!DOCTYPE html><html>Please log in</html>"
    answer.headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Length": str(len(answer.body)),
    }


def web_page_without_type(answer: Answer) -> None:
    """The same without saying so."""
    size = int(answer.headers["Content-Length"])
    answer.body = b"<html>".ljust(size)


def endless(answer: Answer) -> None:
    """Never end."""
    answer.headers.pop("Content-Length", None)
    answer.is_endless = True


def redirect(target: str) -> Fault:
    """Lead elsewhere."""
    return status(302, Location=target)


@dataclass
class LocalHub:
    """The hub and its content server."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    """By content's path: what the hub states instead of the truth."""
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By repository: more of what the hub says."""
    in_git: set[str] = field(default_factory=set)
    """Files that are small enough to be kept without a sha256."""
    git_names: dict[str, str] = field(default_factory=dict)
    """By path: what the hub states of them instead of the truth."""
    siblings: list[Any] = field(default_factory=list)
    """More entries of the list of files, as they are."""
    faults: list[Fault] = field(default_factory=list)
    """Faults of the next responses with file bytes, one each."""
    hub_faults: list[Fault] = field(default_factory=list)
    """Faults of the next responses of the hub."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Repositories that have another name now."""
    requests: list[Request] = field(default_factory=list)
    stalled: threading.Event = field(default_factory=threading.Event)
    """Lets go of what stalls or waits."""
    cut_stalled: bool = False
    """Whether what waited is cut off then instead of sent whole."""
    tls: dict[str, ssl.SSLContext] = field(default_factory=dict)
    """By server, "hub" and "content": with what it speaks TLS; plain HTTP where it has none."""

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
        """Value for HF_ENDPOINT."""
        return f"{self._scheme('hub')}://127.0.0.1:{self._hub.server_address[1]}"

    @property
    def content_address(self) -> str:
        """Requests to the content server."""
        return f"{self._scheme('content')}://localhost:{self._content.server_address[1]}"

    def _scheme(self, server: str) -> str:
        return "https" if server in self.tls else "http"

    def add(self, repository: str, path: str, content: bytes) -> str:
        """Put a file into a repository; returns its sha256."""
        self.files.setdefault(repository, {})[path] = content
        return hashlib.sha256(content).hexdigest()

    def asked(self, server: str) -> list[Request]:
        """Requests to one of the servers."""
        return [request for request in self.requests if request.server == server]

    def answer(self, server: str, path: str, headers: dict[str, str]) -> Answer:
        """Say what a well-behaved server would."""
        parts = unquote(urlsplit(path).path).strip("/").split("/")
        if server == "content":
            return self._bytes_of("/".join(parts[:2]), "/".join(parts[2:]), headers)
        for old, new in self.renamed.items():
            if old in path:
                return recorded_answer("moved", target=path.replace(old, new))
        if parts[:2] == ["api", "models"] and len(parts) == 6:
            return self._describe("/".join(parts[2:4]))
        if len(parts) >= 5 and parts[2] == "resolve":
            return self._resolve("/".join(parts[:2]), "/".join(parts[4:]))
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
        shape = {key: value for key, value in REPOSITORY_SHAPE.items() if key not in _OF_ITS_MODEL}
        own = {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings}
        content = {**shape, **own, **self.extra.get(repository, {})}
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
        wanted = headers.get("range", "")
        if wanted and headers.get("if-range", etag) == etag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                return Answer(416, {"Content-Length": "0"}, b"")
            found = f"bytes {start}-{len(content) - 1}/{len(content)}"
            body = content[start:]
            answer = Answer(
                206, {**common, "Content-Range": found, "Content-Length": str(len(body))}, body
            )
        else:
            answer = Answer(200, {**common, "Content-Length": str(len(content))}, content)
        answer.full = content  # type: ignore[attr-defined]
        return answer


def _xet_hash(sha256: str) -> str:
    """Return another hash of as many digits, which is none of the content."""
    return hashlib.sha256(sha256.encode()).hexdigest()


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Say nothing where a client turns away, as it does from a certificate that it does not
        trust."""


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
        # The handshake takes place in the thread of its connection, at the first byte that is read.
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
    """Serve one file as slowly as wanted until interrupted."""
    with LocalHub() as hub:
        hub.add(repository, file.name, file.read_bytes())
        if mb_per_s:
            hub.faults += [slow(int(mb_per_s * 1e5), 0.1)] * 1000
        print(f"HF_ENDPOINT={hub.address}", flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
