"""Tests of clients that leave a real model: it stops within a block and keeps what it has read."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engine.forward_pass import ForwardPass
from engine.pipeline import Pipeline
from engine.session import Session
from tests.app.server.serving import until
from tests.app.server.test_hostile_clients import cut
from tests.app.server.tiny_server import tiny_server
from tests.engine import tiny_gguf

N_CTX = 4096
PATIENCE_S = 60.0
PATHS = (
    "/infill",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
    "/api/chat",
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    described = tiny_gguf.model("qwen2", context_length=N_CTX, vocabulary="bpe")
    marks = {"pre": 5, "suf": 6, "mid": 7}
    folder = tmp_path_factory.mktemp("tiny")
    with tiny_server(folder, marks, described) as client:
        yield client


class Pause:
    """Holds the engine before a call of a method until a client has left.

    Args:
        n_before: Number of calls that run before the one that waits.
    """

    def __init__(self, n_before: int) -> None:
        self.n_calls = 0
        self.is_reached = threading.Event()
        self.is_cancelled = threading.Event()
        self._n_before = n_before

    def wait(self) -> None:
        """Count a call, and wait if it is the one."""
        self.n_calls += 1
        if self.n_calls == self._n_before + 1:
            self.is_reached.set()
            assert self.is_cancelled.wait(PATIENCE_S)


def pause_before(
    monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, n_before: int
) -> Pause:
    """Let a method of the engine wait before a later call until the session is cancelled."""
    pause = Pause(n_before)
    method = getattr(owner, name)
    cancel = ForwardPass.cancel

    def waiting_method(self: Any, *arguments: Any, **options: Any) -> Any:
        pause.wait()
        return method(self, *arguments, **options)

    def noted_cancel(self: ForwardPass) -> None:
        cancel(self)
        pause.is_cancelled.set()

    monkeypatch.setattr(owner, name, waiting_method)
    monkeypatch.setattr(ForwardPass, "cancel", noted_cancel)
    return pause


def body_of(path: str, text: str, n: int, **fields: Any) -> dict[str, Any]:
    """Return a request with a long prompt and a limit on its reply."""
    body: dict[str, Any] = {"model": "m", "ignore_eos": True, **fields}
    if path == "/infill":
        return {**body, "input_prefix": text, "input_suffix": "", "n_predict": n}
    if path == "/v1/completions":
        return {**body, "prompt": text, "max_tokens": n}
    if path == "/v1/responses":
        return {**body, "input": text, "max_output_tokens": n}
    body["messages"] = [{"role": "user", "content": text}]
    if path == "/api/chat":
        return {**body, "options": {"num_predict": n, "ignore_eos": True}}
    return {**body, "max_tokens": n}


def n_read_and_cached(path: str, answer: dict[str, Any]) -> tuple[int, int]:
    """Return how many tokens of a prompt an answer read, and how many were cached."""
    if path == "/infill":
        timings = answer["timings"]
        return timings["prompt_n"], timings["cache_n"]
    usage = answer["usage"]
    if path == "/v1/messages":
        return usage["input_tokens"], usage["cache_read_input_tokens"]
    if path == "/v1/responses":
        n_tokens = usage["input_tokens"]
        n_cached = usage["input_tokens_details"]["cached_tokens"]
    else:
        n_tokens = usage["prompt_tokens"]
        n_cached = usage["prompt_tokens_details"]["cached_tokens"]
    return n_tokens - n_cached, n_cached


def send(client: httpx.Client, path: str, body: dict[str, Any]) -> socket.socket:
    """Return a connection on which a request was sent."""
    content = json.dumps(body).encode()
    address = (client.base_url.host, client.base_url.port)
    connection = socket.create_connection(address, timeout=PATIENCE_S)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    connection.sendall(head.encode() + content)
    return connection


def is_idle(client: httpx.Client) -> bool:
    lines = client.get("/metrics").text.splitlines()
    return "jalopy_requests_running 0" in lines and "jalopy_requests_waiting 0" in lines


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_leaving_stops_the_reading_and_keeps_what_was_read(
    tiny: httpx.Client, path: str, is_streamed: bool
) -> None:
    text = f"{path} {is_streamed} " * 50
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pipeline, "block_size_at", lambda self, pos: 32)
        pause = pause_before(patch, Pipeline, "cache_block", n_before=3)
        connection = send(tiny, path, body_of(path, text, 5, stream=is_streamed))
        assert pause.is_reached.wait(PATIENCE_S)
        cut(connection)
        until(lambda: is_idle(tiny))
        assert pause.n_calls == 4

    if path == "/api/chat":
        return  # Its answer does not say what was cached.
    answer = tiny.post(path, json=body_of(path, text, 1, stream=False)).json()
    n_read, n_cached = n_read_and_cached(path, answer)
    assert n_cached >= 3 * 32
    assert n_read > 32


@pytest.mark.slow
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_leaving_stops_the_writing_and_keeps_the_prompt(
    tiny: httpx.Client, path: str, is_streamed: bool
) -> None:
    text = f"writing {path} {is_streamed} " * 50
    with pytest.MonkeyPatch.context() as patch:
        pause = pause_before(patch, Session, "advance", n_before=3)
        connection = send(tiny, path, body_of(path, text, 500, stream=is_streamed))
        assert pause.is_reached.wait(PATIENCE_S)
        cut(connection)
        until(lambda: is_idle(tiny))
        assert pause.n_calls == 4

    if path == "/api/chat":
        return  # Its answer does not say what was cached.
    answer = tiny.post(path, json=body_of(path, text, 1, stream=False)).json()
    n_read, n_cached = n_read_and_cached(path, answer)
    assert n_cached > 100
    assert n_read <= 2
