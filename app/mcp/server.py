"""One server of tools: its process, and the requests it answers, one at a time.

The server is untrusted: every answer is bounded in time and bytes, and nothing is read between two requests, so that a
flood stands in the pipe. The protocol is a JSON object a line (JSON-RPC 2.0); the part of it that tools need is small,
and the usual package for it (mcp 2.3) gathers a line of any length and takes 0.6 s of a processor to import.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.mcp.guard import FAILED
from app.mcp.offered import ServedTool, UsableTools, in_words
from app.program.version import installed_version
from app.text.clean_text import clean_line, clean_text
from app.text.record import record

PROTOCOL = "2025-06-18"
_MOST_PAGES = 16
_READ_BYTES = 1 << 16
_ENDING_S = 1.0
"""What the guard takes to end everything is a hundredth of it."""
_NOT_FOUND = -32601
"""JSON-RPC's code for a method that is not known."""
_LOOK_S = 0.1
"""A stop is seen this often."""
_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""Variables that a server gets besides its own: keys of other programs are no business of it."""


class ToolServerError(Exception):
    """What a server did wrong, in one line; it is ended then."""


class StoppedError(Exception):
    """The user stopped the request; the server is ended, since its answer would come for the next one."""


@record
class ServerLimits:
    """Limits on a server."""

    start_s: float = 30.0
    call_s: float = 60.0
    answer_bytes: int = 4 << 20
    """Of all that comes until a request is answered."""
    result_chars: int = 1 << 18
    """Of a result; the rest is cut."""


@record
class ToolResult:
    """What a tool said: clean text, safe for a terminal."""

    text: str
    is_error: bool = False
    is_cut: bool = False


class ToolServer:
    """A server that runs from ``start`` to ``close``, for one thread at a time. No shell reads its command."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        limits: ServerLimits | None = None,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = clean_line(name, 40)
        self._command, self._environment = list(command), dict(environment or {})
        self._limits, self._is_stopped = limits or ServerLimits(), is_stopped
        self._child: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[Any, Any] | None = None
        self._unread = bytearray()
        self._n_requests = 0
        self._own_names: dict[str, str] = {}
        """The server's names of tools that models call otherwise."""
        self.n_skipped = 0
        """Lines that were no message, since the start."""
        self.left_out: tuple[str, ...] = ()
        """A line for each tool that the server offers and that cannot be used: its name and why."""

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> tuple[ServedTool, ...]:
        """Start the server and return its tools. Raises ToolServerError, or StoppedError."""
        self.close()
        self._spawn()
        client = {"name": "jalopy", "version": installed_version()}
        greeting = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
        said = self._request("initialize", greeting, self._limits.start_s)
        if not isinstance(said.get("protocolVersion"), str):
            raise self._fault("does not speak the Model Context Protocol")
        ready_s = time.monotonic() + self._limits.start_s
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"}, self._limits.start_s, ready_s)
        return self._list()

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Have a tool do something. Raises ToolServerError, or StoppedError."""
        own_name = self._own_names.get(name, name)
        said = self._request("tools/call", {"name": own_name, "arguments": dict(arguments)}, self._limits.call_s)
        text, most = in_words(said), self._limits.result_chars
        return ToolResult(clean_text(text[:most]), said.get("isError") is True, len(text) > most)

    def close(self) -> None:
        """End the server and its children."""
        if self._end is not None:
            self._end()
        self._child = self._end = None
        self._unread.clear()
        self.n_skipped = 0

    def _spawn(self) -> None:
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ} | self._environment
        guard = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))]
        reading, writing = os.pipe()
        try:
            self._child = subprocess.Popen(
                [*guard, str(reading), *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # what it logs must not reach the terminal
                env=environment,
                pass_fds=(reading,),
                start_new_session=True,  # Ctrl+C in the terminal must not reach it
                bufsize=0,
            )
        except (OSError, ValueError) as error:
            os.close(writing)
            raise self._fault(f"cannot be started: {error}") from None
        finally:
            os.close(reading)
        self._end = weakref.finalize(self, _end, self._child, writing)
        assert self._child.stdin is not None
        os.set_blocking(self._child.stdin.fileno(), False)

    def _list(self) -> tuple[ServedTool, ...]:
        offered, cursor = UsableTools(), None
        for _ in range(_MOST_PAGES):
            page = self._request("tools/list", {"cursor": cursor} if cursor else {}, self._limits.start_s)
            offered.take(page.get("tools"))
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                break
        tools, self.left_out = tuple(offered.tools.values()), tuple(offered.left_out)
        self._own_names = {tool.name: tool.own_name for tool in tools if tool.own_name}
        return tools

    def _request(self, method: str, params: Mapping[str, Any], patience_s: float) -> dict[str, Any]:
        deadline_s = time.monotonic() + patience_s
        self._n_requests += 1
        number, room = self._n_requests, self._limits.answer_bytes
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params}, patience_s, deadline_s)
        said: Mapping[str, Any] | None = None
        while said is None:
            line = self._read_line(deadline_s, patience_s, room)
            room -= len(line) + 1
            for one in self._messages(line):
                if isinstance(one.get("method"), str):
                    self._answer(one, patience_s, deadline_s)
                elif one.get("id") in (number, str(number)) or (one.get("id") is None and one.get("error") is not None):
                    said = one
        error = said.get("error")
        if error is not None:
            message = (error.get("message") or json.dumps(error)) if isinstance(error, dict) else error
            if method == "tools/call":  # the model may mend its call
                return {"content": [{"type": "text", "text": str(message)}], "isError": True}
            if method == "tools/list" and isinstance(error, dict) and error.get("code") == _NOT_FOUND:
                return {}  # a server of other things
            raise self._fault(f"refuses {method}: {clean_line(str(message), 120)}")
        result = said.get("result")
        if not isinstance(result, dict):
            raise self._fault("gives an answer without a result")
        return result

    def _messages(self, line: bytes) -> list[dict[str, Any]]:
        """Return the messages of a line; none where a program has written something else there, as many do."""
        if line.startswith(FAILED):
            raise self._fault(f"cannot be started: {clean_line(line[1:].decode(errors='replace'), 120)}")
        try:
            said = json.loads(line.decode("utf-8", "replace").lstrip("\ufeff"))
        except (ValueError, RecursionError):
            said = None
        batch = said if isinstance(said, list) else [said]
        found = [one for one in batch if isinstance(one, dict)]
        self.n_skipped += bool(line.strip()) and not found
        return found

    def _answer(self, asked: Mapping[str, Any], patience_s: float, deadline_s: float) -> None:
        """Answer what a server asks for; notifications ask for nothing."""
        number = asked.get("id")
        if not isinstance(number, (int, str)):
            return
        answer: dict[str, Any] = {"error": {"code": _NOT_FOUND, "message": "not supported"}}
        if asked["method"] == "ping":
            answer = {"result": {}}
        self._send({"jsonrpc": "2.0", "id": number, **answer}, patience_s, deadline_s)

    def _send(self, message: Mapping[str, Any], patience_s: float, deadline_s: float) -> None:
        if self._child is None or self._child.stdin is None:
            raise ToolServerError(f"tool server {self.name} is not running (/tools on {self.name} starts it)")
        pipe, left = self._child.stdin.fileno(), memoryview(json.dumps(message).encode() + b"\n")
        while left:
            self._look(deadline_s, patience_s)
            if select.select([], [pipe], [], _LOOK_S)[1]:
                try:
                    left = left[os.write(pipe, left) :]
                except BlockingIOError:
                    continue
                except OSError:
                    raise self._fault("has ended") from None

    def _read_line(self, deadline_s: float, patience_s: float, room: int) -> bytes:
        assert self._child is not None
        assert self._child.stdout is not None
        pipe, searched = self._child.stdout.fileno(), 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if searched > room:
                raise self._fault(f"says more than {self._limits.answer_bytes >> 20 or 1} MB at once")
            self._look(deadline_s, patience_s)
            if not select.select([pipe], [], [], _LOOK_S)[0]:
                continue
            piece = os.read(pipe, _READ_BYTES)
            if not piece:
                raise self._fault("has ended")
            self._unread += piece
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        if end > room:
            raise self._fault(f"says more than {self._limits.answer_bytes >> 20 or 1} MB at once")
        return line

    def _look(self, deadline_s: float, patience_s: float) -> None:
        if self._is_stopped():
            self.close()
            raise StoppedError
        if time.monotonic() >= deadline_s:
            skipped = f" ({self.n_skipped} of its lines were no JSON)" if self.n_skipped else ""
            raise self._fault(f"did not answer within {patience_s:g} s{skipped}")

    def _fault(self, what: str) -> ToolServerError:
        self.close()
        return ToolServerError(f"tool server {self.name} {what} (command: {clean_line(' '.join(self._command), 80)})")


def _end(child: subprocess.Popen[bytes], lifeline: int) -> None:
    """Let the guard end the server and all its descendants; one that stands still is ended with them."""
    with contextlib.suppress(OSError):
        os.close(lifeline)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if not _has_ended(child):
        for process_id in (*_descendants(child.pid), child.pid):
            with contextlib.suppress(OSError):
                os.kill(process_id, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        if not _has_ended(child):
            threading.Thread(target=child.wait, daemon=True).start()


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(timeout=_ENDING_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _descendants(process_id: int) -> list[int]:
    import psutil

    try:
        return [one.pid for one in psutil.Process(process_id).children(recursive=True)]
    except (psutil.Error, OSError):
        return []
