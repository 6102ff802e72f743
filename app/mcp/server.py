"""One server of tools: the requests it answers, one at a time, whatever way leads to it (``transport.py``).

The server is untrusted: every answer is bounded in time and bytes. The protocol is JSON-RPC 2.0; the part of it that
tools need is small, and the usual package for it (mcp 2.3) gathers a line of any length and takes 0.6 s of a processor
to import.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from app.mcp.offered import ServedTool, UsableTools, in_words
from app.mcp.pipe import Pipe
from app.mcp.transport import Fault, SessionLost, StoppedError, Transport, Wait
from app.program.version import installed_version
from app.text.clean_text import clean_line, clean_text
from app.text.record import record

PROTOCOL = "2025-06-18"
_MOST_PAGES = 16
_NOT_FOUND = -32601
"""JSON-RPC's code for a method that is not known."""


class ToolServerError(Exception):
    """What a server did wrong, in one line; it is ended then."""


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
    """A server from ``start`` to ``close``, for one thread at a time.

    Args:
        transport: the way to it; the command of a program is one that runs here.
    """

    def __init__(
        self,
        name: str,
        transport: Transport | Sequence[str],
        limits: ServerLimits = ServerLimits(),  # noqa: B008 - it does not change
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = clean_line(name, 40)
        self._transport = Pipe(transport) if isinstance(transport, Sequence) else transport
        self._limits, self._is_stopped = limits, is_stopped
        self._n_requests = 0
        self._own_names: dict[str, str] = {}
        """The server's names of tools that models call otherwise."""
        self.left_out: tuple[str, ...] = ()
        """A line for each tool that the server offers and that cannot be used: its name and why."""

    @property
    def is_running(self) -> bool:
        """Whether it can be asked."""
        return self._transport.is_open

    def start(self) -> tuple[ServedTool, ...]:
        """Start the server and return its tools. Raises ToolServerError, or StoppedError."""
        self.close()
        with self._ended_by_faults():
            self._begin()
            return self._list()

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Have a tool do something. Raises ToolServerError, or StoppedError."""
        if not self.is_running:
            raise ToolServerError(f"tool server {self.name} is not running (/tools on {self.name} starts it)")
        params = {"name": self._own_names.get(name, name), "arguments": dict(arguments)}
        with self._ended_by_faults():
            try:
                said = self._request("tools/call", params, self._limits.call_s)
            except SessionLost:  # nothing of the call has happened
                self._begin()
                said = self._request("tools/call", params, self._limits.call_s)
        text, most = in_words(said), self._limits.result_chars
        return ToolResult(clean_text(text[:most]), said.get("isError") is True, len(text) > most)

    def close(self) -> None:
        """End the server."""
        self._transport.close()

    @contextmanager
    def _ended_by_faults(self) -> Iterator[None]:
        """End the server where it does something wrong, or where the user stops it."""
        try:
            yield
        except Fault as fault:
            self.close()
            raise ToolServerError(f"tool server {self.name} {fault} ({self._transport.shown})") from None
        except StoppedError:
            self.close()
            raise

    def _begin(self) -> None:
        client = {"name": "jalopy", "version": installed_version()}
        greeting = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
        self._transport.open()
        said = self._request("initialize", greeting, self._limits.start_s)
        if not isinstance(said.get("protocolVersion"), str):
            raise Fault("does not speak the Model Context Protocol")
        self._transport.note_version(said["protocolVersion"])
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        self._transport.send(ready, Wait(self._limits.start_s, self._is_stopped))

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
        wait = Wait(patience_s, self._is_stopped)
        self._n_requests += 1
        number = self._n_requests
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        for batch in self._transport.ask(message, wait, self._limits.answer_bytes):
            said = None
            for one in batch:
                if isinstance(one.get("method"), str):
                    self._answer(one, wait)
                elif one.get("id") in (number, str(number)) or (one.get("id") is None and one.get("error") is not None):
                    said = one
            if said is not None:
                return self._result(method, said)
        raise Fault("ends its answer before there is one")

    def _result(self, method: str, said: Mapping[str, Any]) -> dict[str, Any]:
        error = said.get("error")
        if error is not None:
            message = (error.get("message") or json.dumps(error)) if isinstance(error, dict) else error
            if method == "tools/call":  # the model may mend its call
                return {"content": [{"type": "text", "text": str(message)}], "isError": True}
            if method == "tools/list" and isinstance(error, dict) and error.get("code") == _NOT_FOUND:
                return {}  # a server of other things
            raise Fault(f"refuses {method}: {clean_line(str(message), 120)}")
        result = said.get("result")
        if not isinstance(result, dict):
            raise Fault("gives an answer without a result")
        return result

    def _answer(self, asked: Mapping[str, Any], wait: Wait) -> None:
        """Answer what a server asks for; notifications ask for nothing."""
        number = asked.get("id")
        if not isinstance(number, (int, str)):
            return
        answer: dict[str, Any] = {"error": {"code": _NOT_FOUND, "message": "not supported"}}
        if asked["method"] == "ping":
            answer = {"result": {}}
        try:
            self._transport.send({"jsonrpc": "2.0", "id": number, **answer}, wait)
        except SessionLost as lost:  # a call may have happened: it is not sent again
            raise Fault(str(lost)) from None
