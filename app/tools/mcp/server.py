"""One server of tools: the requests it answers, one at a time, whatever way leads to it
(``transport.py``).

The server is untrusted: every answer is bounded in time and bytes. The protocol is JSON-RPC 2.0;
the part of it that tools need is small, and the usual package for it (mcp 2.3) gathers a line of
any length and takes 0.6 s of a processor to import.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from app.program.version import installed_version
from app.text.clean_text import clean_line, clean_text
from app.text.record import record
from app.tools.mcp.offered import ServedTool, UsableTools, in_words
from app.tools.mcp.pipe import Pipe
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
_MOST_PAGES = 1000
"""Limit on the pages of a list of tools."""
_PROGRESS = "notifications/progress"
_TOOLS_CHANGED = "notifications/tools/list_changed"
_NOT_FOUND = -32601
"""JSON-RPC's code for a method that is not known."""


class ToolServerError(Exception):
    """What a server did wrong, in one line; it is ended then."""


@record
class ServerLimits:
    """Limits on a server."""

    start_s: float = 60.0
    """Seconds without an answer while it starts: it may have to download itself first."""
    call_s: float = 60.0
    """Seconds without an answer or a report of progress while a tool runs."""
    answer_bytes: int = 32 << 20
    """Bytes of all that comes until a request is answered; a picture is 5 MB."""
    result_chars: int = 1 << 18
    """Characters of a result; the rest is cut."""


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
        self._limits = limits
        self._is_stopped = is_stopped
        self._n_requests = 0
        self._own_names: dict[str, str] = {}
        """The server's names of tools that models call otherwise."""
        self.left_out: tuple[str, ...] = ()
        """A line for each tool that the server offers and that cannot be used: its name and why."""
        self.has_new_tools = False
        """Whether the server has said that its list of tools has changed.

        Only what it said since ``start`` or ``list_tools`` counts.
        """

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

    def list_tools(self) -> tuple[ServedTool, ...]:
        """Return the tools of a server that runs. Raises ToolServerError, or StoppedError."""
        with self._ended_by_faults():
            return self._list()

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the result of a tool, which may be an error.

        Raises ToolServerError, or StoppedError.
        """
        if not self.is_running:
            raise ToolServerError(
                f"tool server {self.name} is not running (/tools on {self.name} starts it)"
            )
        params = {"name": self._own_names.get(name, name), "arguments": dict(arguments)}
        with self._ended_by_faults():
            try:
                result = self._call(params)
            except SessionLost:  # nothing of the call has happened
                self._begin()
                result = self._call(params)
        text = in_words(result)
        most = self._limits.result_chars
        return ToolResult(clean_text(text[:most]), result.get("isError") is True, len(text) > most)

    def _call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a call.

        What the server refuses becomes a result that is an error, which the model may mend.
        """
        try:
            return self._request("tools/call", params, self._limits.call_s)
        except TooLargeError as fault:
            return _error_result(f"The answer is not read: the server {fault}. Ask for less of it.")
        except RequestRefused as fault:
            return _error_result(f"The server {fault}")

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
            raise ToolServerError(
                f"tool server {self.name} {fault} ({self._transport.shown})"
            ) from None
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
        offered = self._read_pages()
        if self.has_new_tools:  # it was not ready before
            offered = self._read_pages()
        tools = tuple(offered.tools.values())
        self.left_out = tuple(offered.left_out)
        self._own_names = {tool.name: tool.own_name for tool in tools if tool.own_name}
        return tools

    def _read_pages(self) -> UsableTools:
        """Return the tools of all pages of the list, until it ends or a page comes again."""
        self.has_new_tools = False
        offered = UsableTools()
        cursor = ""
        seen: set[str] = set()
        while cursor not in seen:
            seen.add(cursor)
            try:
                page = self._request(
                    "tools/list", {"cursor": cursor} if cursor else {}, self._limits.start_s
                )
            except RequestRefused as fault:
                if not cursor:
                    raise
                offered.leave_out("the rest of the list", str(fault))
                break
            offered.take(page.get("tools"))
            following = page.get("nextCursor")
            if not isinstance(following, str) or not following:
                break
            if len(seen) >= _MOST_PAGES or offered.is_full:
                offered.leave_out("the rest of the list", "it is too long")
                break
            cursor = following
        return offered

    def _request(self, method: str, params: Mapping[str, Any], patience_s: float) -> dict[str, Any]:
        wait = Wait(patience_s, self._is_stopped)
        self._n_requests += 1
        number = self._n_requests
        if method == "tools/call":
            params = {**params, "_meta": {"progressToken": number}}
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        for batch in self._transport.ask(message, wait, self._limits.answer_bytes):
            answer = None
            for part in batch:
                if isinstance(part.get("method"), str):
                    self._answer(part, wait)
                elif _is_answer(part, number):
                    answer = part
            if answer is not None:
                return self._result(method, answer)
        raise Fault("ends its answer before there is one")

    def _result(self, method: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        error = answer.get("error")
        if error is not None:
            message = _words_of(error)
            if method == "tools/call":  # the model may mend its call
                return _error_result(message)
            if (
                method == "tools/list"
                and isinstance(error, dict)
                and error.get("code") == _NOT_FOUND
            ):
                return {}  # a server of other things
            raise RequestRefused(f"refuses {method}: {clean_line(message, 120)}")
        result = answer.get("result")
        if not isinstance(result, dict):
            raise Fault("gives an answer without a result")
        return result

    def _answer(self, asked: Mapping[str, Any], wait: Wait) -> None:
        """Answer what a server asks for, and note what it notifies of."""
        if asked["method"] == _PROGRESS:
            wait.extend()
        self.has_new_tools = self.has_new_tools or asked["method"] == _TOOLS_CHANGED
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


def _is_answer(message: Mapping[str, Any], number: int) -> bool:
    """Whether a message answers the request of this number.

    An error without a number answers one of the requests.
    """
    if message.get("id") is None:
        return message.get("error") is not None
    return message["id"] in (number, str(number))


def _words_of(error: Any) -> str:
    """Return what an error says, in the server's own words, and what it adds to them as text."""
    if not isinstance(error, dict):
        return str(error)
    message = error.get("message")
    if not isinstance(message, str) or not message:
        return json.dumps(error)
    more = error.get("data")
    if isinstance(more, str) and more and more not in message:
        return f"{message}: {more}"
    return message


def _error_result(words: str) -> dict[str, Any]:
    """Return the result of a tool that says what went wrong."""
    return {"content": [{"type": "text", "text": words}], "isError": True}
