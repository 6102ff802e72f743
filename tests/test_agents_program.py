"""The relay and the processes of ``tests.programs.agents``; the agents themselves need npm."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.programs.agents.__main__ import RoundTrip, end_processes
from tests.programs.agents.agent_programs import AGENTS, install
from tests.programs.agents.relay import MOST_TOKENS, Exchange, ForcedCall, Relay, forced

CHAT = "/v1/chat/completions"
FUNCTION = {"type": "function", "function": {"name": "read"}}
CALL = ForcedCall("read", {"path": "note.txt"})
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string", "enum": ["note.txt"]}},
    "required": ["path"],
    "additionalProperties": False,
}
RESULT = {"role": "tool", "tool_call_id": "a", "content": "blue"}


def test_the_first_request_must_call_the_tool() -> None:
    choices = {
        CHAT: ({"tools": [FUNCTION]}, FUNCTION),
        "/v1/responses": (
            {"tools": [{"type": "function", "name": "read"}]},
            {"type": "function", "name": "read"},
        ),
        "/v1/messages": ({"tools": [{"name": "read"}]}, {"type": "tool", "name": "read"}),
    }
    for path, (body, choice) in choices.items():
        fields = json.loads(forced(path, json.dumps(body).encode(), CALL))
        assert fields["tool_choice"] == choice, path
        function = fields["tools"][0].get("function", fields["tools"][0])
        assert SCHEMA in function.values(), path
        assert MOST_TOKENS in fields.values(), path


def test_a_request_with_a_result_must_not_call() -> None:
    results = {
        CHAT: ({"messages": [RESULT], "tools": [FUNCTION]}, "none"),
        "/v1/responses": (
            {"input": [{"type": "function_call_output"}], "tools": [{"name": "read"}]},
            "none",
        ),
        "/v1/messages": (
            {"messages": [{"content": [{"type": "tool_result"}]}], "tools": [{"name": "read"}]},
            {"type": "none"},
        ),
    }
    for path, (body, choice) in results.items():
        fields = json.loads(forced(path, json.dumps(body).encode(), CALL))
        assert fields["tool_choice"] == choice, path


def test_a_request_without_the_tool_keeps_its_choice() -> None:
    body = {"messages": [], "max_completion_tokens": 9000, "tools": [FUNCTION]}
    fields = json.loads(forced(CHAT, json.dumps(body).encode(), ForcedCall("write", {})))
    assert fields == {"messages": [], "max_tokens": MOST_TOKENS, "tools": [FUNCTION]}


class Handler(BaseHTTPRequestHandler):
    """A server that calls a tool, or refuses a request without messages."""

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200 if b"messages" in body else 400)
        self.end_headers()
        self.wfile.write(b'{"tool_calls": [{"id": "a"}]}')


@pytest.fixture
def relay() -> Iterator[Relay]:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    relay = Relay(f"http://127.0.0.1:{server.server_port}")
    yield relay
    relay.close()
    server.shutdown()
    server.server_close()


def post(relay: Relay, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(relay.url + CHAT, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as response:
        return bytes(response.read())


def test_the_relay_records_calls_and_results(relay: Relay) -> None:
    assert b"tool_calls" in post(relay, {"messages": []})
    assert relay.exchange == Exchange(n_requests=1, n_accepted=1, called=True)
    post(relay, {"messages": [RESULT]})
    assert relay.exchange.returned


def test_the_relay_records_a_refused_request(relay: Relay) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        post(relay, {})
    error.value.read()
    assert (relay.exchange.n_requests, relay.exchange.n_accepted) == (1, 0)
    assert relay.exchange.errors[0].startswith("400 ")


def test_a_round_trip_needs_a_result_and_an_answer() -> None:
    exchange = Exchange(n_requests=2, n_accepted=2, called=True)
    trip = RoundTrip(exchange, "A blue key.", "", 1.0, 20, 10)
    assert not trip.is_whole(has_tools=True)
    assert trip.is_whole(has_tools=False)
    exchange.returned = True
    assert trip.is_whole(has_tools=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_processes_that_left_their_group_are_ended(tmp_path: Path) -> None:
    process = subprocess.Popen(
        ["sleep", "60"],
        env={"HOME": str(tmp_path), "PATH": "/bin:/usr/bin"},
        start_new_session=True,
    )
    end_processes(tmp_path)
    assert not psutil.pid_exists(process.pid)
    process.wait(30)


def test_a_missing_installer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert install(AGENTS["pi"], tmp_path) == "npm is not on this machine"
