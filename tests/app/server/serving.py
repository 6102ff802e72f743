"""Server in the process of the test, over the scripted engine: real sockets, no model."""

from __future__ import annotations

import gc
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from app.backend.local import engine_access
from app.program.settings import Settings, built_in_settings
from app.server.command import listen
from app.server.http_server import HttpServer
from app.session import model_sampling
from engine import Sampling
from tests.app.fake_engine import Script
from tests.app.scripted_access import use_script

if TYPE_CHECKING:
    import openai

PATIENCE_S = 60.0


def client_of(server: Serving, api_key: str = "none") -> openai.OpenAI:
    """Return OpenAI's client. It is imported late because collecting tests does not need it."""
    import openai

    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key=api_key, max_retries=0, http_client=server.client
    )


class Serving:
    """Running server and its scripted engine."""

    def __init__(self, script: Script, running: HttpServer, port: int) -> None:
        self.script = script
        self.running = running
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        # Loading certificates, which are not needed here, takes a third of a request's time. Each
        # request has its own connection.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.client = httpx.Client(timeout=PATIENCE_S, trust_env=False, verify=False, limits=limits)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """Send JSON, or bytes unchanged."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(self.url + path, content=content, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Send a GET request."""
        return self.client.get(self.url + path, **options)

    def options(self, path: str, **options: Any) -> httpx.Response:
        """Send an OPTIONS request."""
        return self.client.options(self.url + path, **options)

    def chat(self, text: str = "hi", **fields: Any) -> httpx.Response:
        """Send a message of the user."""
        return self.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields}
        )

    def raw(self) -> socket.socket:
        """Return a connection to the server."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def end(self) -> None:
        """Stop the server as a signal does, unless it has stopped."""
        loop = self.running._loop
        assert loop is not None
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self.running._shut_down, 0)

    @property
    def n_connections(self) -> int:
        """Number of open connections."""
        return len(self.running._server.server_state.connections)

    @property
    def n_background_tasks(self) -> int:
        """Number of background tasks that wait."""
        return len(self.running._models.opened["m"].engine._background_tasks)

    def metric(self, name: str) -> float:
        """Return a counter."""
        lines = self.get("/metrics").text.splitlines()
        return float(next(line.split()[-1] for line in lines if line.startswith(f"jalopy_{name}")))


@contextmanager
def serving(
    monkeypatch: pytest.MonkeyPatch,
    script: Script | None = None,
    api_key: str = "",
    max_waiting: int = 16,
    settings: Settings | None = None,
    waits: bool = True,
    states: Any = None,
    max_at_once: int = 1,
    path: Path | None = Path("m.gguf"),
    model_id: str = "m",
    idle_s: float = 0.0,
) -> Iterator[Serving]:
    """Run a server with a script until the end of the block."""
    script = use_script(monkeypatch, script or Script())
    monkeypatch.setattr(model_sampling, "make_sampling", lambda settings, model, mode: Sampling())
    monkeypatch.setattr(engine_access, "state_files", lambda settings: states)
    # Closing a model runs the garbage collector, which takes a second with all tests loaded.
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
    listener = listen("127.0.0.1", 0)
    settings = settings or built_in_settings()
    names = ("127.0.0.1",)
    running = HttpServer(
        path, settings, listener, model_id, names, api_key, max_waiting, max_at_once, idle_s
    )
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    served = Serving(script, running, listener.getsockname()[1])
    try:
        until(lambda: served.get("/health").status_code == (200 if waits else 503))
        yield served
    finally:
        for gate in (script.open_gate, script.token_gate, script.prefill_gate):
            if gate:
                gate.open()
        served.end()
        thread.join(PATIENCE_S)
        listener.close()
        served.client.close()
    assert not thread.is_alive()


def until(holds: Callable[[], bool]) -> None:
    """Wait until a condition in another thread holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        time.sleep(0.01)
