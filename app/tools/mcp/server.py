"""A tool server and its requests, one at a time, over any transport (``transport.py``).

The server is untrusted: every answer is limited in time and bytes. The protocol is JSON-RPC 2.0.
Tools need only a small part of it; the usual package (mcp 2.3) accepts lines of any length and
takes 0.6 s to import.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from app.program.version import installed_version
from app.text.clean_text import clean_line, clean_text
from app.text.record import record
from app.tools.mcp.pipe import Pipe
from app.tools.mcp.served_tools import ServedTool, ToolList, result_text
from app.tools.mcp.transport import (
    Fault,
    RequestRefused,
    SessionLost,
    StoppedError,
    TooLargeError,
    Transport,
    Wait,
)

PROTOCOL = "2025-06-18"
_MAX_PAGES = 1000
"""Limit on the pages of a list of tools."""
_PROGRESS = "notifications/progress"
_TOOLS_CHANGED = "notifications/tools/list_changed"
_METHOD_NOT_FOUND = -32601
"""JSON-RPC's code for an unknown method."""


class ToolServerError(Exception):
    """A fault of a server in one line. The server has been ended."""


@record
class ServerLimits:
    """Limits on a server."""

    start_s: float = 60.0
    """Seconds without an answer during the start: the server may have to download itself."""
    call_s: float = 60.0
    """Seconds without an answer or a report of progress during a call."""
    answer_bytes: int = 32 << 20
    """Bytes of everything until a request is answered; a picture has 5 MB."""
    result_chars: int = 1 << 18
    """Characters of a result; the rest is cut."""


@record
class ToolResult:
    """Result of a call: clean text, safe for a terminal."""

    text: str
    is_error: bool = False
    is_cut: bool = False


class ToolServer:
    """A tool server from ``start`` to ``close``, for one thread at a time.

    Args:
        name: Name in the settings.
        transport: Connection to the server, or the command of a local program.
        limits: Limits on time and sizes.
        is_stopped: Whether the user has stopped the request.

    Attributes:
        left_out: Lines about tools that cannot be used, each with a name and the reason.
        has_new_tools: Whether the server has announced a changed list of tools since the list was
            read.
    """

    def __init__(
        self,
        name: str,
        transport: Transport | Sequence[str],
        limits: ServerLimits = ServerLimits(),  # noqa: B008 - a constant
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = clean_line(name, 40)
        self._transport = Pipe(transport) if isinstance(transport, Sequence) else transport
        self._limits = limits
        self._is_stopped = is_stopped
        self._n_requests = 0
        self._server_names: dict[str, str] = {}
        """The server's names of tools whose names models cannot use."""
        self.left_out: tuple[str, ...] = ()
        self.has_new_tools = False

    @property
    def is_running(self) -> bool:
        """Whether the server can get requests."""
        return self._transport.is_open

    def start(self) -> tuple[ServedTool, ...]:
        """Start the server and return its tools.

        Raises:
            ToolServerError: The server is faulty.
            StoppedError: The user stops it.
        """
        self.close()
        with self._closing_on_fault():
            self._start_session()
            return self._read_tools()

    def list_tools(self) -> tuple[ServedTool, ...]:
        """Return the tools of a running server.

        Raises:
            ToolServerError: The server is faulty.
            StoppedError: The user stops it.
        """
        with self._closing_on_fault():
            return self._read_tools()

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Call a tool and return its result, which may be an error.

        Raises:
            ToolServerError: The server is faulty.
            StoppedError: The user stops it.
        """
        if not self.is_running:
            raise ToolServerError(
                f"tool server {self.name} is not running (/tools on {self.name} starts it)"
            )
        params = {"name": self._server_names.get(name, name), "arguments": dict(arguments)}
        with self._closing_on_fault():
            try:
                result = self._call(params)
            except SessionLost:  # The call has not been executed.
                self._start_session()
                result = self._call(params)

        text = result_text(result)
        max_chars = self._limits.result_chars
        return ToolResult(
            clean_text(text[:max_chars]),
            is_error=result.get("isError") is True,
            is_cut=len(text) > max_chars,
        )

    def _call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a call.

        A refusal becomes a result with an error, so that the model can correct its call.
        """
        try:
            return self._request("tools/call", params, self._limits.call_s)
        except TooLargeError as fault:
            return _error_result(f"The answer was not read: the server {fault}. Ask for less.")
        except RequestRefused as fault:
            return _error_result(f"The server {fault}")

    def close(self) -> None:
        """End the server."""
        self._transport.close()

    @contextmanager
    def _closing_on_fault(self) -> Iterator[None]:
        """End the server after a fault, or if the user stops it."""
        try:
            yield
        except Fault as fault:
            self.close()
            raise ToolServerError(
                f"tool server {self.name} {fault} ({self._transport.label})"
            ) from None
        except StoppedError:
            self.close()
            raise

    def _start_session(self) -> None:
        self._transport.open()
        params = {
            "protocolVersion": PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "jalopy", "version": installed_version()},
        }
        result = self._request("initialize", params, self._limits.start_s)
        version = result.get("protocolVersion")
        if not isinstance(version, str):
            raise Fault("does not speak the Model Context Protocol")
        self._transport.set_version(version)
        notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        self._transport.send(notification, Wait(self._limits.start_s, self._is_stopped))

    def _read_tools(self) -> tuple[ServedTool, ...]:
        tool_list = self._read_pages()
        if self.has_new_tools:  # The server was not ready before.
            tool_list = self._read_pages()
        tools = tuple(tool_list.tools.values())
        self.left_out = tuple(tool_list.left_out)
        self._server_names = {tool.name: tool.server_name for tool in tools if tool.server_name}
        return tools

    def _read_pages(self) -> ToolList:
        """Return the tools of all pages of the list, until it ends or a page repeats."""
        self.has_new_tools = False
        tool_list = ToolList()
        cursor = ""
        read_cursors: set[str] = set()
        while cursor not in read_cursors:
            read_cursors.add(cursor)
            params = {"cursor": cursor} if cursor else {}
            try:
                page = self._request("tools/list", params, self._limits.start_s)
            except RequestRefused as fault:
                if not cursor:
                    raise
                tool_list.leave_out("the rest of the list", str(fault))
                break
            tool_list.add(page.get("tools"))

            next_cursor = page.get("nextCursor")
            if not isinstance(next_cursor, str) or not next_cursor:
                break
            if len(read_cursors) >= _MAX_PAGES or tool_list.is_full:
                tool_list.leave_out("the rest of the list", "it is too long")
                break
            cursor = next_cursor
        return tool_list

    def _request(self, method: str, params: Mapping[str, Any], patience_s: float) -> dict[str, Any]:
        wait = Wait(patience_s, self._is_stopped)
        self._n_requests += 1
        request_id = self._n_requests
        if method == "tools/call":
            params = {**params, "_meta": {"progressToken": request_id}}
        message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}

        for received in self._transport.ask(message, wait, self._limits.answer_bytes):
            answer: dict[str, Any] | None = None
            for server_message in received:
                if isinstance(server_message.get("method"), str):
                    self._handle(server_message, wait)
                elif _is_answer(server_message, request_id):
                    answer = server_message
            if answer is not None:
                return self._result(method, answer)
        raise Fault("ends the connection before it has answered")

    def _result(self, method: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        error = answer.get("error")
        if error is not None:
            text = _error_text(error)
            if method == "tools/call":  # The model can correct its call.
                return _error_result(text)
            code = error.get("code") if isinstance(error, dict) else None
            if method == "tools/list" and code == _METHOD_NOT_FOUND:
                return {}  # a server without tools
            raise RequestRefused(f"refuses {method}: {clean_line(text, 120)}")

        result = answer.get("result")
        if not isinstance(result, dict):
            raise Fault("sends an answer without a result")
        return result

    def _handle(self, message: Mapping[str, Any], wait: Wait) -> None:
        """Handle a notification of the server, or answer its request."""
        method = message["method"]
        if method == _PROGRESS:
            wait.extend()
        if method == _TOOLS_CHANGED:
            self.has_new_tools = True

        request_id = message.get("id")
        if not isinstance(request_id, (int, str)):
            return
        if method == "ping":
            answer: dict[str, Any] = {"result": {}}
        else:
            answer = {"error": {"code": _METHOD_NOT_FOUND, "message": "not supported"}}
        try:
            self._transport.send({"jsonrpc": "2.0", "id": request_id, **answer}, wait)
        except SessionLost as lost:
            # The call may have been executed, so it is not sent again.
            raise Fault(str(lost)) from None


def _is_answer(message: Mapping[str, Any], request_id: int) -> bool:
    """Whether a message answers a request. An error without an id answers any request."""
    if message.get("id") is None:
        return message.get("error") is not None
    return message["id"] in (request_id, str(request_id))


def _error_text(error: Any) -> str:
    """Return the text of an error: the server's message, and its data if that is a text."""
    if not isinstance(error, dict):
        return str(error)
    message = error.get("message")
    if not isinstance(message, str) or not message:
        return json.dumps(error)
    details = error.get("data")
    if isinstance(details, str) and details and details not in message:
        return f"{message}: {details}"
    return message


def _error_result(text: str) -> dict[str, Any]:
    """Return the result of a failed call."""
    return {"content": [{"type": "text", "text": text}], "isError": True}
