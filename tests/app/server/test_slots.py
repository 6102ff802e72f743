"""Tests of several requests at once: each slot has its own session and thread."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.backend.local import engine_access
from app.program.settings import built_in_settings
from app.server.command import listen
from app.server.http_server import HttpServer
from app.session import model_sampling
from engine import Sampling
from engine.errors import MemoryPlanError
from tests.app.fake_engine import Gate, Script
from tests.app.scripted_access import use_script
from tests.app.server.serving import Serving, serving, until

LONG_REPLY = [["word "] * 6]


def held_back() -> Script:
    """Return a script with replies of six tokens, which the test releases one by one."""
    return Script(replies=LONG_REPLY, token_gate=Gate())


def gate_of(server: Serving) -> Gate:
    assert server.script.token_gate is not None
    return server.script.token_gate


def ask(pool: ThreadPoolExecutor, server: Serving, *texts: str) -> list[Future[httpx.Response]]:
    return [pool.submit(server.chat, text) for text in texts]


def cached_tokens(answer: httpx.Response) -> int:
    usage: Any = answer.json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_each_slot_answers_a_request_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, held_back(), max_at_once=2) as server, ThreadPoolExecutor(3) as pool:
        answers = ask(pool, server, "one", "two", "three")
        until(
            lambda: (server.metric("requests_running"), server.metric("requests_waiting")) == (2, 1)
        )
        gate_of(server).open()
        assert [answer.result(60).json()["usage"]["completion_tokens"] for answer in answers] == [
            6,
            6,
            6,
        ]
        assert server.get("/props").json()["total_slots"] == 2


def test_a_conversation_continues_in_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, max_at_once=3) as server:
        talks = [
            [{"role": "user", "content": f"talk {number}: " + "word " * 20}] for number in range(3)
        ]
        for talk in talks:
            reply = server.post("/v1/chat/completions", {"messages": talk}).json()["choices"][0][
                "message"
            ]
            talk += [
                {"role": "assistant", "content": reply["content"]},
                {"role": "user", "content": "and then?"},
            ]
        for talk in reversed(talks):
            assert cached_tokens(server.post("/v1/chat/completions", {"messages": talk})) > 20


def test_a_leaving_client_frees_only_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, held_back(), max_at_once=2) as server, ThreadPoolExecutor(1) as pool:
        (stays,) = ask(pool, server, "stays")
        until(lambda: server.metric("requests_running") == 1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{server.url}/v1/completions",
                json={"prompt": "goes"},
                timeout=0.5,
                trust_env=False,
            )
        until(lambda: server.metric("clients_gone_total") == 1)
        assert server.metric("requests_running") == 1
        gate_of(server).open()
        assert stays.result(60).json()["usage"]["completion_tokens"] == 6


def test_memory_limits_the_number_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, Script(most_sessions=3), max_at_once=0) as server:
        assert server.get("/props").json()["total_slots"] == 3


def test_too_many_requested_slots_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_script(monkeypatch, Script(most_sessions=2))
    monkeypatch.setattr(engine_access, "state_files", lambda settings: None)
    monkeypatch.setattr(model_sampling, "make_sampling", lambda settings, model, mode: Sampling())
    with listen("127.0.0.1", 0) as listener, pytest.raises(MemoryPlanError):
        HttpServer(
            Path("m.gguf"), built_in_settings(), listener, "m", (), "", 4, max_at_once=3
        ).run()
