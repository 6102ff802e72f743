"""Messages of servers of tools, over a pipe and over HTTP.

They are changed at random, and these are the rules that must hold.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

from app.backend.remote.tool_address import ToolAddress
from app.tools.mcp.pipe import Pipe
from app.tools.mcp.served_tools import MAX_TOOLS
from app.tools.mcp.server import ServerLimits, ToolServer, ToolServerError
from app.tools.mcp.transport import Transport
from tests.programs.fuzz.mutation import mutate_bytes
from tests.programs.fuzz.target import Fault, Target, Watch, require_clean_line

_CPU_S = 10.0
_MEMORY_BYTES = 128 << 20
_LIMITS = ServerLimits(start_s=2.0, call_s=1.0, answer_bytes=1 << 20, result_chars=1 << 14)
_KEY = "sk-secret-of-the-fuzzer"
_METHODS = ("initialize", "notifications/initialized", "tools/list", "tools/call")
_NAMES = ("look", "a b", "ü", "\x1b[2J", "", "n" * 200, None, 5)
_SCHEMAS: tuple[Any, ...] = (
    {"type": "object", "properties": {"city": {"type": "string"}}}, [], None, {"properties": []},
    {"type": "array"},
    True,
    {"properties": {"a": [], "b": True}, "required": None}, {"oneOf": [{}]}, {"$ref": "#"}, "x",
)  # fmt: skip
_CONTENTS: tuple[Any, ...] = (
    [{"type": "text", "text": "sunny\x1b[31m\ud800"}], None, "sunny",
    {"type": "text", "text": "x" * 50_000}, [5, []], [{"type": "image", "data": "QUFB"}],
    [{"type": "resource", "resource": {"mimeType": "text/x", "blob": "%%"}}],
    [{"type": "resource", "resource": {"uri": "\x1b", "mimeType": "text/plain", "blob": "c3Vu"}}],
    [{"type": ["x"]}],
)  # fmt: skip
_ERRORS: tuple[Any, ...] = (
    {"code": -32601, "message": "no"}, {"message": "\x1b[31mno", "data": "more"}, "no", {}, [],
    {"message": 5}, 7,
)  # fmt: skip
_VERSIONS: tuple[Any, ...] = ("2025-06-18", "2025-06-18", "2025-06-18", "☃", "a\r\nb", "", None, 5)
_CURSORS: tuple[Any, ...] = (None, None, "1", "2", "", 5, "\ud800", "x" * 3000)
_ASKED: tuple[Any, ...] = (
    {"id": "p", "method": "ping"}, {"method": "notifications/progress", "params": None},
    {"id": [], "method": "x"}, {"method": "notifications/tools/list_changed"},
    {"id": 1, "method": "sampling/createMessage"}, {}, 5, None,
)  # fmt: skip
_STATUSES = (200, 200, 200, 200, 202, 204, 302, 307, 308, 400, 401, 404, 405, 429, 500, 503, 999)
_HEADERS: tuple[dict[str, str], ...] = (
    {}, {"Mcp-Session-Id": "s"}, {"Mcp-Session-Id": "ü"}, {"Mcp-Session-Id": "a b"},
    {"Retry-After": "0"}, {"Retry-After": "-1"}, {"Retry-After": "9" * 30}, {"Location": "/x"},
    {"Location": "http://127.0.0.1:9/"}, {"Location": "http://[::1"}, {"Location": "//"},
    {"Content-Encoding": "gzip"}, {"Content-Encoding": "br"}, {"Content-Type": "text/event-stream"},
    {"Content-Type": "text/plain"}, {"X": "y" * 70_000},
)  # fmt: skip
_FRAMES = (
    "{}",
    "{}",
    "data: {}\n\n",
    "event: ping\ndata: now\n\ndata: {}\n\n",
    "data: {}",
    "[{}]",
    ": x\r\n\r\ndata:{}\r\n\r\n",
)
_HOST_SCRIPT = Path(__file__).with_name("tool_server_script.py")


def seeds() -> list[bytes]:
    """Scripts with answers of each kind."""
    rng = Random(1)
    return [_script(rng) for _ in range(60)]


def mutate(rng: Random, data: bytes, inputs: Sequence[bytes]) -> bytes:
    """Change bytes of a script, or make another one."""
    return mutate_bytes(rng, data, inputs) if rng.random() < 0.3 else _script(rng)


def _script(rng: Random) -> bytes:
    """Return what a server says to each method: lines of JSON, and how HTTP sends them."""
    oddness = rng.choice((0.0, 0.1, 0.1, 0.4))
    answers = {
        method: [_answer(rng, method, oddness) for _ in range(rng.randrange(1, 3))]
        for method in _METHODS
    }
    script = {
        "way": rng.choice(("pipe", "http", "http")),
        "said": answers,
        "ends": rng.random() < oddness / 4,
    }
    return json.dumps(script).encode()


def _answer(rng: Random, method: str, oddness: float) -> dict[str, Any]:
    """Return an answer to a method: its text, where N is the request's number, and its HTTP."""
    values = [_message(rng, method, oddness)]
    if rng.random() < 0.3:
        values.insert(0, rng.choice(_ASKED))
    lines = [json.dumps(value) for value in values]
    if rng.random() < oddness:
        lines.insert(0, rng.choice(("log: started", "[" * 9000, "\x1b[31m", '{"id":', "<html>")))
    sound = {"Mcp-Session-Id": "s", "Content-Type": "text/event-stream"}
    return {
        "lines": lines,
        "frame": rng.choice(_FRAMES)
        if len(lines) == 1 or rng.random() < oddness
        else "data: {}\n\n",
        "status": rng.choice(_STATUSES) if rng.random() < oddness else 200,
        "headers": rng.choice(_HEADERS) if rng.random() < oddness else sound,
    }


def _message(rng: Random, method: str, oddness: float) -> Any:
    """Return the message that answers a method, or one that is odd."""
    if rng.random() < oddness:
        return {"jsonrpc": "2.0", "id": rng.choice(("N", None)), "error": rng.choice(_ERRORS)}
    result: Any = {}
    if method == "initialize":
        version = rng.choice(_VERSIONS) if rng.random() < oddness else "2025-06-18"
        result = {"protocolVersion": version, "capabilities": rng.choice(({}, []))}
    elif method == "tools/list":
        n_tools = rng.choice((1, 2, 90))
        tools = [
            {"name": rng.choice(_NAMES), "inputSchema": rng.choice(_SCHEMAS)}
            for _ in range(n_tools)
        ]
        result = {
            "tools": rng.choice((tools, tools, tools, None, [None, 5])),
            "nextCursor": rng.choice(_CURSORS),
        }
    elif method == "tools/call":
        result = {"content": rng.choice(_CONTENTS), "isError": rng.choice((True, False, None, "x"))}
        if rng.random() < 0.3:
            result["structuredContent"] = rng.choice(({"a": 1}, [1, 2], "x", 5))
    number = rng.choice((None, 99)) if rng.random() < oddness else "N"
    return {"jsonrpc": "2.0", "id": number, "result": result}


class _ServerState:
    """A script served over HTTP until ``close``."""

    def __init__(self, script: dict[str, Any]) -> None:
        served = self
        self._script = script

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                with suppress(OSError):
                    served.answer(self, json.loads(self.rfile.read(length)))

            def do_DELETE(self) -> None:
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/mcp"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler, call: dict[str, Any]) -> None:
        """Answer a request by the script."""
        answer = answer_to(self._script, call)
        status = answer.get("status")
        request.send_response(status if type(status) is int and 100 < status < 1000 else 200)
        for name, value in _pairs(answer.get("headers")):
            request.send_header(name, value)
        request.end_headers()
        frame = str(answer.get("frame", "{}"))
        body = "".join(frame.replace("{}", line) for line in lines_of(answer, call))
        request.wfile.write(body.encode("utf-8", "replace"))

    def close(self) -> None:
        """End."""
        self._http.shutdown()
        self._http.server_close()


def _pairs(headers: Any) -> list[tuple[str, str]]:
    """Return the headers of a script that a server can send."""
    pairs = headers.items() if isinstance(headers, dict) else ()
    return [
        (name, value)
        for name, value in pairs
        if isinstance(value, str)
        and value.isprintable()
        and all(ord(char) < 256 for char in name + value)
    ]


def answer_to(script: Any, call: dict[str, Any]) -> dict[str, Any]:
    """Return what a script says to a request."""
    by_method = script.get("said") if isinstance(script, dict) else None
    answers = by_method.get(call.get("method")) if isinstance(by_method, dict) else None
    candidates = (
        [answer for answer in answers if isinstance(answer, dict)]
        if isinstance(answers, list)
        else []
    )
    number = call.get("id")
    return (
        candidates[number % len(candidates) if isinstance(number, int) else 0] if candidates else {}
    )


def lines_of(answer: dict[str, Any], call: dict[str, Any]) -> list[str]:
    """Return the lines of an answer with the number of its request."""
    lines = answer.get("lines")
    lines = lines if isinstance(lines, list) else []
    return [str(line).replace('"N"', json.dumps(call.get("id"))) for line in lines]


def run(data: bytes, folder: Path, watch: Watch) -> str:
    """Start a server that does as the script says, and call its first tool.

    It gives clean text, or one clean line.
    """
    try:
        script = json.loads(data)
    except (ValueError, RecursionError):
        script = {}
    script = script if isinstance(script, dict) else {}
    if script.get("way") == "pipe":
        file = folder / "script.json"
        file.write_bytes(data)
        return _use(Pipe([sys.executable, "-I", "-S", str(_HOST_SCRIPT), str(file)]), watch)
    served = _ServerState(script)
    try:
        return _use(ToolAddress(served.url, key=_KEY), watch)
    finally:
        served.close()


def _use(transport: Transport, watch: Watch) -> str:
    server = ToolServer("fuzzed", transport, _LIMITS)
    try:
        with watch.bounded("a server of tools", _CPU_S, _MEMORY_BYTES):
            tools = server.start()
            texts = [server.call(tools[0].name, {"city": "Oslo"}).text] if tools else []
    except ToolServerError as error:
        if _KEY in str(error):
            raise Fault("the key is told") from None
        return require_clean_line(str(error)[:300])
    finally:
        server.close()
    if len(tools) > MAX_TOOLS:
        raise Fault("more tools than there may be")
    for text in (*texts, *(tool.name for tool in tools), *server.left_out):
        if "\x1b" in text or len(text) > _LIMITS.result_chars:
            raise Fault("a text of the server's is not clean, or too long")
        text.encode()
    for tool in tools:
        if not all(isinstance(rule, dict) for rule in tool.parameters["properties"].values()):
            raise Fault("a property is described by no schema")
    return f"tools {min(len(tools), 2)} texts {len(texts)} left out {min(len(server.left_out), 2)}"


TARGET = Target(seeds, mutate, run, source=("app/tools/mcp", "app/backend/remote"))
