"""Hostile servers: a download ends with the right file or with one line, bounded, and what came can
be gone on with.

An input is a JSON object with a script for each server, "hub", "content" and "api" (which computes
answers: ``api_answers.py``): what to say to its first requests. What comes after the script is what
a sound server says, so that a client may recover. An answer is an object:

=========  ==================================================================================================
``head``   the raw head, Latin-1, without its final empty line; without it the head is what a sound server sends
``lies``   headers in place of, or next to, those of a sound head
``body``   what of the body is sent: ``[start, end]`` of what is right, a text (after ``gzip:`` packed), ``"junk:N"``
``cut``    number of bytes to send before closing
``pieces`` bytes to send at a time
=========  ==================================================================================================

``here``, bytes of a part file that is there before, and ``note``, what is said next to it, are the
disk's lies.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import socket
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from app.models.downloads import hub
from app.models.downloads.fetch import download, make_plan
from app.models.downloads.hub import RemoteFile
from app.models.downloads.pull import choices_of
from app.program.web import Web
from app.program.web_refusals import DownloadError
from tests.engine import tiny_gguf
from tests.programs.fuzz import api_answers
from tests.programs.fuzz.mutation import edge
from tests.programs.fuzz.target import Fault, Target, Watch, require_clean_line

NAME = "tiny-F32.gguf"
REPOSITORY = "someone/Tiny-GGUF"
MOST_REQUESTS = 60
"""Limit on the requests for one small file; more of them are an endless loop."""
MOST_PAUSE_S = 2000.0
"""Limit on all pauses together in seconds: four of five minutes and a few short ones."""
_CPU_S = 5.0
_MEMORY_BYTES = 64 << 20
_TIMEOUT_S = 0.4
"""Silence that counts as a dead connection: the program's own 30 s, shortened."""
_MOST_SENT_BYTES = 48 << 20
"""Bytes that an endless server sends before it gives up, far more than the buffers of two
sockets."""
_ENDLESS_BYTES = 40 << 20
"""Bytes accepted by a client that show a missing limit: an answer of the hub may have 16 MB, the
file has 0.1."""
_COMMIT = "0123456789abcdef0123456789abcdef01234567"


@lru_cache(maxsize=1)
def content() -> bytes:
    """Return the right file: a tiny model of some 100 kB."""
    return tiny_gguf.build(n_layers=1, dim=32, hidden_dim=32, n_heads=2, n_kv_heads=1)


# ---- what servers say


def seeds() -> list[bytes]:
    """Answers of real servers, and some invented to harm a client."""
    n = len(content())
    scripts: list[dict[str, Any]] = [
        {}, {"content": [{"cut": 50000}]},
        {"content": [{"cut": 70000}, {"head": "HTTP/1.1 416 No"}]},
        {"content": [{"head": "HTTP/1.1 429 No\r\nRetry-After: 5", "body": ""}]},
        {"content": [{"head": "HTTP/1.1 503 No\r\nRetry-After: Wed, 21 Oct 9999 07:28:00 GMT"}] * 9},
        {"content": [{"head": "HTTP/1.1 302 Go\r\nLocation: /x/y"}] * 9},
        {"content": [{"head": "HTTP/1.1 302 Go\r\nLocation: file:///etc/passwd"}]},
        {"content": [{"head": "HTTP/1.1 302 Go\r\nLocation: //[::1"}]},
        {"content": [{"lies": {"Content-Encoding": "gzip"}}]},
        {"content": [{"head": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked",
                      "body": "5\r\nGGUF!\r\nffffffffffffffff\r\n"}]},
        {"content": [{"head": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked",
                      "body": "-5\r\nGGUF"}]},
        {"content": [{"head": "HTTP/1.1 100 Continue", "body": "100s"}]},
        {"content": [{"head": "HTTP/1.1 200 OK\r\n" + "\r\n".join(f"X-{i}: y" for i in range(200))}]},
        {"content": [{"head": "HTTP/1.1 200 OK\r\nX: " + "y" * 99999}]},
        {"content": [{"head": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked",
                      "body": "trailers"}]},
        {"content": [{"head": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", "body": "chunks"}]},
        {"content": [{"head": "HTTP/1.1 200 OK", "body": "junk:30000000"}]},
        {"content": [{"lies": {"Content-Length": str(n - 1)}}]},
        {"content": [{"lies": {"Content-Length": "-1"}}]},
        {"content": [{"lies": {"Content-Length": str(n + 9)}}]},
        {"content": [{"lies": {"Content-Length": "1e3"}}]},
        {"content": [{"cut": 70000}, {"lies": {"Content-Range": f"bytes 0-{n - 1}/{n}"}}]},
        {"content": [{"cut": 70000}, {"lies": {"Content-Range": "bytes */5"}}]},
        {"content": [{"cut": 70000}, {"lies": {"ETag": '"other"'}, "body": [0, n]}]},
        {"content": [{"body": [5, n]}]}, {"content": [{"body": "<html>"}]},
        {"content": [{"pieces": 7, "cut": 70}]},
        {"here": 50000, "note": "right"}, {"here": 50000, "note": "junk"},
        {"here": 999999, "note": "right"},
        {"here": 50000, "note": "wrong part"}, {"content": [{"cut": 0}] * 9},
        {"content": [{"body": "junk:100"}]},
        {"hub": [{"body": "[]"}]},
        {"hub": [{"body": '{"siblings": [{"rfilename": "../../x.gguf"}]}'}]},
        {"hub": [{"body": "[" * 100000}]},
        {"hub": [{"head": "HTTP/1.1 200 OK", "body": "junk:30000000"}]},
        {"hub": [{"head": "HTTP/1.1 401 No\r\nX-Error-Code: GatedRepo"}]},
        {"hub": [{"body": "stall"}]},
        {"hub": [{"lies": {"siblings": ["x" * 300, {"rfilename": "a.gguf", "size": True,
                                                    "lfs": {}}]}}]},
        {"content": [{"body": "stall"}] * 6},
    ]  # fmt: skip
    return [json.dumps(script).encode() for script in [*scripts, *api_answers.seeds()]]


_HEADS = ("HTTP/1.1 200 OK", "HTTP/1.1 206 Part", "HTTP/1.1 416 No", "HTTP/1.1 500 No",
          "HTTP/1.1 429 No",
          "HTTP/1.0 200",
          "HTTP/1.1 302 Go", "HTTP/1.1 304 Same", "HTTP/1.1 204 None", "HTTP/9.9 200 OK",
          "HTTP/1.1 999 ?", "HTTP/1.1 -1 ?",
          "HTTP/1.1 101 Switch", "HTTP/1.1 100 Continue\r\n", "HTTP/1.1 100 Continue", "ICY 200 OK",
          "", "GGUF",
          "HTTP/1.1 200 " + "O" * 70000,
          "HTTP/1.1 401 No", "HTTP/1.1 403 No", "HTTP/1.1 404 No", "HTTP/1.1 503 No",
          "HTTP/1.1 407 Proxy")  # fmt: skip
_NAMES = ("Content-Length", "Content-Range", "Content-Type", "Content-Encoding", "ETag", "Location",
          "Retry-After",
          "RateLimit", "Transfer-Encoding", "X-Linked-ETag", "X-Error-Code", "X-Error-Message",
          "Connection",
          "Set-Cookie",
          "WWW-Authenticate", "Accept-Ranges", "X\x00Y", "Content-Length ", "\tX", "Link",
          "Date")  # fmt: skip
_VALUES = ("0", "1", "-1", "99999999999999999999", "bytes 0-1/2", "bytes 65536-/*", "text/html",
           "gzip", '"a"', 'W/"a"',
           "/", "http://[", "file:///etc/passwd", "chunked", "identity, chunked",
           "text/html\r\n\tfolded", "\x1b[31m",
           "é",
           "1e9", "nan", "Thu, 01 Jan 1970 00:00:00 GMT", "Thu, 99 Foo 99999 99:99:99 +9999",
           '"api";r=0;t=999999', "",
           "GatedRepo", "http://user:pass@127.0.0.1/", "\x00", "x" * 3000, "close", "0x10", " 5 ",
           "5, 5")  # fmt: skip
_BODIES = ("", "<html>log in</html>", "junk:10", "junk:70000", "junk:30000000",
           "5\r\nGGUF!\r\n0\r\n\r\n", "100s",
           "trailers",
           "chunks", "stall", "GGUF", "{}", "null", "[[]]", '{"siblings": 5}', '"\\ud800"',
           "{" * 3000)  # fmt: skip


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """Return a script with changed or reordered answers."""
    script: dict[str, Any] = json.loads(data)
    if rng.random() < 0.5:  # most of the time goes into it: an answer costs less than a download
        return json.dumps(
            {"api": [api_answers.answer(rng) for _ in range(rng.randrange(1, 3))]}
        ).encode()
    for _ in range(rng.randrange(1, 4)):
        choice = rng.randrange(8)
        server = "hub" if choice == 0 else "content"
        answers = script.setdefault(server, [])
        if choice == 1:
            script["here"] = rng.choice(
                (0, 3, 4, 1000, 70000, len(content()) - 1, len(content()), edge(rng) % 500_000)
            )
            script["note"] = rng.choice(("right", "junk", "wrong part", "none", "other size"))
        elif choice == 2:
            answers += json.loads(rng.choice(inputs)).get(server, [])[:9]
        elif choice == 3 and answers:
            answers[rng.randrange(len(answers))].update(_answer(rng))
        else:
            answers.insert(rng.randrange(len(answers) + 1), _answer(rng))
        del answers[12:]
    return json.dumps(script).encode()


def _answer(rng: Random) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    if rng.random() < 0.4:
        lines = [rng.choice(_HEADS)]
        lines += [f"{rng.choice(_NAMES)}: {rng.choice(_VALUES)}" for _ in range(rng.randrange(4))]
        answer["head"] = "\r\n".join(lines)
    if rng.random() < 0.5:
        value = rng.choice(
            (rng.choice(_VALUES), str(edge(rng)), f"bytes {edge(rng)}-{edge(rng)}/{edge(rng)}")
        )
        answer["lies"] = {rng.choice(_NAMES): value}
    if rng.random() < 0.4:
        n = len(content())
        answer["body"] = rng.choice((rng.choice(_BODIES), [rng.randrange(n), rng.randrange(2 * n)]))
    if rng.random() < 0.4:
        answer["cut"] = rng.choice(
            (0, 1, 5, 200, 1000, 65536, 66000, 90000, rng.randrange(150_000))
        )
    if rng.random() < 0.1:
        answer["pieces"] = rng.choice((1, 7, 4096))
        answer.setdefault("cut", 300)
    return answer


# ---- the servers


class _Server:
    """Server on 127.0.0.1 that answers as its script says."""

    def __init__(self, script: Sequence[dict[str, Any]], sound: Any) -> None:
        self._script = list(script)
        self._sound = sound
        self.requests: list[bytes] = []
        self.most_taken_bytes = 0
        self._is_over = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        self._is_over.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(30)

    def _serve(self) -> None:
        while not self._is_over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, suppress(OSError, TimeoutError):
                # What is still unread would otherwise reset the connection before the answer is
                # read.
                connection.settimeout(20)
                self._answer(connection)
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)

    def _answer(self, connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request and len(request) < 65536:
            piece = connection.recv(65536)
            if not piece:
                return
            request += piece
        self.requests.append(request)
        scripted = self._script.pop(0) if self._script else {}
        status, headers, body = self._sound(request)
        head = scripted.get("head")
        if head is None:
            headers = {
                **headers,
                **{str(key): str(value) for key, value in scripted.get("lies", {}).items()},
            }
            head = "\r\n".join([status, *(f"{key}: {value}" for key, value in headers.items())])
        raw = head.encode("latin-1", "replace") + b"\r\nConnection: close\r\n\r\n"
        self._send(connection, scripted, raw, body)

    def _send(
        self, connection: socket.socket, scripted: dict[str, Any], head: bytes, body: bytes
    ) -> None:
        body_spec = scripted.get("body")
        n_left = scripted.get("cut", 1 << 60)
        n_taken = 0
        step = scripted.get("pieces", 1 << 16)
        for piece in self._pieces(body_spec, head, body):
            for start in range(0, len(piece), step):
                chunk = piece[start : start + step][:n_left]
                connection.sendall(chunk)
                n_left = n_left - len(chunk)
                n_taken = n_taken + len(chunk)
                self.most_taken_bytes = max(self.most_taken_bytes, n_taken)
                if not n_left or self._is_over.is_set():
                    return

    def _pieces(self, body_spec: Any, head: bytes, body: bytes) -> Iterator[bytes]:
        yield head
        if body_spec is None:
            yield body
        elif isinstance(body_spec, list):
            yield content()[body_spec[0] : body_spec[1]]
        elif body_spec.startswith("junk:"):
            yield from _endless(b"G" * 4096, int(body_spec[5:]))
        elif body_spec == "stall":
            yield body[: len(body) // 2]
            self._is_over.wait(2 * _TIMEOUT_S)
        elif body_spec == "100s":
            yield from _endless(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
        elif body_spec == "trailers":
            yield b"4\r\nGGUF\r\n0\r\n"
            yield from _endless(b"X: y\r\n" * 500)
        elif body_spec.startswith(("gzip:", "deflate:")):
            encoding, _, text = body_spec.partition(":")
            yield (gzip.compress if encoding == "gzip" else zlib.compress)(
                text.encode("utf-8", "surrogatepass")
            )
        elif body_spec == "bomb":
            yield from _endless(gzip.compress(b"\n" * (8 << 20)), 1 << 20)
        elif body_spec == "chunks":
            yield b"4;" + b"x" * 60000 + b"\r\nGGUF\r\n"
            yield from _endless(b"1\r\nx\r\n" * 500)
        else:
            yield body_spec.encode("utf-8", "surrogatepass")


def _endless(piece: bytes, most_bytes: int = _MOST_SENT_BYTES) -> Iterator[bytes]:
    for _ in range(min(most_bytes, _MOST_SENT_BYTES) // len(piece) + 1):
        yield piece


def sound_content(request: bytes) -> tuple[str, dict[str, str], bytes]:
    """Answer of a sound content server."""
    body = content()
    etag = '"right"'
    requested_range = re.search(rb"(?i)\r\nRange: bytes=(\d+)-\r\n", request)
    condition = re.search(rb"(?i)\r\nIf-Range: (.*?)\r\n", request)
    headers = {"ETag": etag, "Content-Type": "application/octet-stream"}
    if requested_range is None or (condition is not None and condition[1] != etag.encode()):
        return "HTTP/1.1 200 OK", {**headers, "Content-Length": str(len(body))}, body
    start = int(requested_range[1])
    if start >= len(body):
        return "HTTP/1.1 416 No", {"Content-Length": "0"}, b""
    headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
    return "HTTP/1.1 206 Part", {**headers, "Content-Length": str(len(body) - start)}, body[start:]


def sound_hub(_: bytes) -> tuple[str, dict[str, str], bytes]:
    """Answer of a sound hub about its one repository."""
    sha256 = hashlib.sha256(content()).hexdigest()
    sibling = {
        "rfilename": NAME,
        "size": len(content()),
        "lfs": {"sha256": sha256, "size": len(content())},
    }
    body = json.dumps({"id": REPOSITORY, "sha": _COMMIT, "siblings": [sibling]}).encode()
    return (
        "HTTP/1.1 200 OK",
        {"Content-Type": "application/json", "Content-Length": str(len(body))},
        body,
    )


def sound_api(_: bytes) -> tuple[str, dict[str, str], bytes]:
    """Answer of a sound server of an API: a short stream."""
    event = {"choices": [{"index": 0, "delta": {"content": "Blue sky"}, "finish_reason": "stop"}]}
    body = b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n"
    return "HTTP/1.1 200 OK", {"Content-Type": "text/event-stream"}, body


@contextmanager
def serving(script: Sequence[dict[str, Any]], sound: Any) -> Iterator[_Server]:
    server = _Server(script, sound)
    try:
        yield server
    finally:
        server.close()


# ---- what must hold


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Ask the hub and download; if that fails, complete the download from a sound server."""
    script: dict[str, Any] = json.loads(data)
    outcomes = []
    if "api" in script:
        with watch.bounded("asking for an answer", _CPU_S, _MEMORY_BYTES):
            for ask in (api_answers.ask_models, api_answers.ask):
                with serving(script["api"], sound_api) as server:
                    outcomes.append(ask(server.address))
        return ", ".join(outcomes)
    with (
        serving(script.get("hub", []), sound_hub) as server,
        watch.bounded("asking the hub", _CPU_S, _MEMORY_BYTES),
    ):
        outcomes.append(_asked(server))
    target = folder / "models"
    target.mkdir()
    remote_name = _lay_part(script, target)
    content_script = script.get("content", [])
    with (
        serving(content_script, sound_content) as server,
        watch.bounded("the download", _CPU_S, _MEMORY_BYTES),
    ):
        outcomes.append(_downloaded(server, target))
    _require_nothing_else(folder, target, remote_name)
    if not (target / NAME).exists():
        with serving([], sound_content) as server:
            again = _downloaded(server, target)
            if "thrown away" in again:  # what had come was wrong, which only the hash can tell
                again = _downloaded(server, target)
        if again != "right":
            raise Fault(f"a sound server afterwards does not end in the right file: {again}")
    return ", ".join(outcomes)


def _asked(server: _Server) -> str:
    pauses: list[float] = []
    web = Web("secret", server.address.removeprefix("http://"), _TIMEOUT_S, pause=pauses.append)
    try:
        repository = hub.read_repository(web, REPOSITORY, base=server.address)
    except DownloadError as error:
        return "hub: " + require_clean_line(f"jalopy: {error}")
    finally:
        _require_patience(server, pauses)
    for file in repository.files:
        if (
            os.sep in file.name
            or file.name.startswith(".")
            or not file.url.startswith(server.address)
        ):
            raise Fault(f"the hub may name files elsewhere: {file}")
    choices_of(repository)
    return f"hub: {min(2, len(repository.files))} files"


def _downloaded(server: _Server, target: Path) -> str:
    pauses: list[float] = []
    web = Web("", "", _TIMEOUT_S, pause=pauses.append)
    remote = RemoteFile(
        NAME, f"{server.address}/{NAME}", len(content()), hashlib.sha256(content()).hexdigest()
    )
    try:
        download(make_plan((remote,), target), web, lambda _: None)
    except DownloadError as error:
        return require_clean_line(f"jalopy: {error}")
    finally:
        _require_patience(server, pauses)
    if (target / NAME).read_bytes() != content():
        raise Fault("the download ended well with a wrong file")
    return "right"


def _require_patience(server: _Server, pauses: list[float]) -> None:
    if len(server.requests) > MOST_REQUESTS:
        raise Fault(f"{len(server.requests)} requests for one file")
    if server.most_taken_bytes > _ENDLESS_BYTES:
        raise Fault(f"an answer without end was read for {server.most_taken_bytes >> 20} MB")
    if not sum(pauses) <= MOST_PAUSE_S or any(pause < 0 for pause in pauses):
        raise Fault(f"waited {sum(pauses):.0f} s: {pauses}")


def _lay_part(script: dict[str, Any], target: Path) -> str:
    """Leave the part of an earlier download."""
    if not script.get("here"):
        return NAME
    right = content()
    note: Any = {"sha256": hashlib.sha256(right).hexdigest(), "size": len(right), "etag": '"right"'}
    if script.get("note") == "other size":
        note["size"] += 1
    is_wrong = script.get("note") == "wrong part"
    raw = json.dumps(note).encode()
    n = min(script["here"], 500_000)
    (target / f"{NAME}.part").write_bytes(
        (b"GGUF" + bytes(n))[:n] if is_wrong else (right + bytes(n))[:n]
    )
    if script.get("note") != "none":
        (target / f"{NAME}.part.json").write_bytes(
            struct.pack("<Q", n) if script.get("note") == "junk" else raw
        )
    return NAME


def _require_nothing_else(folder: Path, target: Path, name: str) -> None:
    """Check that files lie where they may, and that none is larger than what was wanted."""
    allowed = {target / name, target / f"{name}.part", target / f"{name}.part.json"}
    for path in folder.rglob("*"):
        if path.is_file() and path not in allowed:
            raise Fault(f"a file was written elsewhere: {path.relative_to(folder)}")
        if (
            path.is_file()
            and path.suffix != ".json"
            and path.stat().st_size > max(len(content()), 500_000)
        ):
            raise Fault(f"{path.name} has {path.stat().st_size} bytes")


TARGET = Target(
    seeds, mutate, run, source=("app/models/downloads", "app/backend/remote"), hang_s=120.0
)
