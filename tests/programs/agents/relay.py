"""A relay between agents and the server, which records what passes through it."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_TOKEN_LIMITS = {
    "/v1/chat/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
}
"""Paths that replies come from, each with its field for the limit on a reply."""
_SCHEMAS = {
    "/v1/chat/completions": "parameters",
    "/v1/responses": "parameters",
    "/v1/messages": "input_schema",
}
"""Field for the schema of a tool's arguments."""
MOST_TOKENS = 160
"""Limit on a reply where calls are forced: small models may go on without end."""
FORCED_ANSWER = "The blue key opens the shed."
"""Answer after the first result where calls are forced."""
MOST_RESULTS = 3
"""Number of results after which the model may not call again: small models repeat their call."""
_CALL = re.compile(r'"tool_calls": ?\[\{|"type": ?"(function_call|custom_tool_call|tool_use)"')
"""A call of a tool in a reply, in each API."""
_RESULT = re.compile(r'"role": ?"tool"|"type": ?"(\w+_call_output|tool_result)"')
"""The result of a tool in a request, in each API."""
_UNSENT_HEADERS = {"connection", "transfer-encoding", "content-length", "host", "accept-encoding"}
_SILENCE_LIMIT_S = 3600.0


@dataclass
class Exchange:
    """Record of what one agent and the server sent to each other."""

    n_requests: int = 0
    n_accepted: int = 0
    called: bool = False
    """Whether a reply had a call."""
    returned: bool = False
    """Whether a request had the result of a tool."""
    calls_were_ended: bool = False
    """Whether the model was kept from further calls."""
    errors: list[str] = field(default_factory=list)
    """Answers that refused a request."""


@dataclass(frozen=True)
class ForcedCall:
    """A call that the first reply must make.

    Args:
        tool: Name of the tool; "" for agents without tools, whose replies are only limited.
        arguments: Arguments of the call, which the tool's schema is reduced to.
    """

    tool: str
    arguments: dict[str, str]


class Relay:
    """A server on a free port that hands requests on, and replies back piece by piece.

    Args:
        target: Address of ``jalopy serve``, without a path.
    """

    def __init__(self, target: str) -> None:
        self.exchange = Exchange()
        self.forced_call: ForcedCall | None = None
        """Call that replies to requests without a result must make; None to leave them alone."""
        self._target = urlsplit(target).netloc
        relay = self

        class Handler(BaseHTTPRequestHandler):
            """A request of an agent."""

            def log_message(self, format: str, *arguments: Any) -> None:
                """Print nothing."""

            def do_GET(self) -> None:
                relay.hand_on(self)

            do_POST = do_HEAD = do_DELETE = do_OPTIONS = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def hand_on(self, handler: BaseHTTPRequestHandler) -> None:
        """Send a request to the server, and its reply to the agent as it comes."""
        exchange = self.exchange
        path = urlsplit(handler.path).path
        is_reply = handler.command == "POST" and path in _TOKEN_LIMITS
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        if is_reply:
            exchange.n_requests += 1
            n_results = len(_RESULT.findall(body.decode("utf-8", "replace")))
            exchange.returned |= n_results > 0
            if self.forced_call is not None:
                body = forced(path, body, self.forced_call)
            elif n_results >= MOST_RESULTS:
                exchange.calls_were_ended = True
                body = without_calls(path, body)

        connection = http.client.HTTPConnection(self._target, timeout=_SILENCE_LIMIT_S)
        headers = _passed(handler.headers.items())
        with suppress(OSError, http.client.HTTPException):  # either side may leave
            connection.request(handler.command, handler.path, body or None, headers)
            response = connection.getresponse()
            handler.close_connection = True
            handler.send_response_only(response.status)
            for name, value in _passed(response.getheaders()).items():
                handler.send_header(name, value)
            handler.send_header("Connection", "close")
            handler.end_headers()
            text = _copy(response, handler.wfile.write)
            if is_reply and response.status == 200:
                exchange.n_accepted += 1
                exchange.called |= _CALL.search(text) is not None
            elif is_reply:
                exchange.errors.append(f"{response.status} {text[:300]}")
        connection.close()


def forced(path: str, body: bytes, call: ForcedCall) -> bytes:
    """Return the body of a request that must call the tool, or answer after its first result.

    The limit on a reply is lowered, too. A request without the tool keeps its choice.
    """
    fields = json.loads(body)
    limit = _TOKEN_LIMITS[path]
    fields.pop("max_completion_tokens", None)
    fields[limit] = min(fields.get(limit) or MOST_TOKENS, MOST_TOKENS)
    for definition in fields.get("tools") or ():
        function = definition.get("function", definition)
        if function.get("name") == call.tool:
            function[_SCHEMAS[path]] = _schema(call.arguments)
            must_call = _RESULT.search(body.decode("utf-8", "replace")) is None
            fields["tool_choice"] = _choice(path, call.tool if must_call else "")
            if not must_call:
                fields["guided_choice"] = [FORCED_ANSWER]
    return json.dumps(fields).encode()


def without_calls(path: str, body: bytes) -> bytes:
    """Return the body of a request whose reply may have no call."""
    fields = json.loads(body)
    fields["tool_choice"] = _choice(path, "")
    return json.dumps(fields).encode()


def _schema(arguments: dict[str, str]) -> dict[str, Any]:
    """Return a schema that allows these arguments alone."""
    return {
        "type": "object",
        "properties": {name: {"type": "string", "enum": [arguments[name]]} for name in arguments},
        "required": list(arguments),
        "additionalProperties": False,
    }


def _choice(path: str, tool: str) -> Any:
    """Return the choice of a tool, or of none, as an API writes it."""
    if path == "/v1/messages":
        return {"type": "tool", "name": tool} if tool else {"type": "none"}
    if not tool:
        return "none"
    if path == "/v1/responses":
        return {"type": "function", "name": tool}
    return {"type": "function", "function": {"name": tool}}


def _passed(headers: Any) -> dict[str, str]:
    """Return the headers that go through."""
    return {name: value for name, value in headers if name.lower() not in _UNSENT_HEADERS}


def _copy(response: http.client.HTTPResponse, write: Callable[[bytes], Any]) -> str:
    """Write a body as it comes, and return it as text."""
    pieces = []
    while piece := response.read1(65536):
        pieces.append(piece)
        write(piece)
    return b"".join(pieces).decode("utf-8", "replace")
