"""Tests of the models of one server: found by name, opened on request, closed when idle."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.program.settings import built_in_settings
from app.server import model_pool
from engine.errors import BrokenModelError, MemoryPlanError
from engine.measure import fit as fitting
from tests.app.fake_engine import Gate, Script
from tests.app.server.serving import PATIENCE_S, Serving, client_of, serving, until
from tests.engine import families, tiny_gguf
from tests.engine.vision import tiny_mmproj

NAMES = ["Big-1B", "Small-0.5B-Q4_0", "Small-0.5B-Q8_0"]


@contextmanager
def by_name(
    monkeypatch: pytest.MonkeyPatch, folder: Path, script: Script | None = None, **options: Any
) -> Iterator[Serving]:
    """Serve the models of a folder. The default model is the big one."""
    monkeypatch.chdir(folder)
    settings = replace(built_in_settings(), model_directories=(str(folder),))
    path = folder / "Big-1B-F16.gguf"
    with serving(
        monkeypatch, script, settings=settings, path=path, model_id="", **options
    ) as server:
        yield server


def answering_model(server: Serving, model: str, **fields: Any) -> str:
    """Return the name of the model that answers, or the code of the error."""
    reply = server.chat(model=model, **fields)
    return str(reply.json()["model"] if reply.status_code == 200 else reply.json()["error"]["code"])


def opened(server: Serving) -> list[str]:
    return [f"{model.path.stem}{' closed' * model.is_closed}" for model in server.script.opened]


def test_listed_names_open_their_models(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with by_name(monkeypatch, folder) as server:
        client = client_of(server)
        assert sorted(name.id for name in client.models.list() if name.id != "starter") == NAMES
        assert opened(server) == []
        assert [
            answering_model(server, name)
            for name in ("", "big-1b", "Big-1B:latest", "Big-1B-F16.gguf", "b")
        ] == ["Big-1B"] * 5
        assert opened(server) == ["Big-1B-F16"]
        assert (
            answering_model(server, "Small-0.5B-q4_0")
            == answering_model(server, "")
            == "Small-0.5B-Q4_0"
        )
        small = client.models.retrieve("small-0.5b-q4")
        assert small.model_extra["meta"]["n_ctx"] == 512  # type: ignore[index]
        assert server.post("/tokenize", {"content": "a b", "model": "big"}).json()["tokens"]
        assert opened(server) == ["Big-1B-F16", "Small-0.5B-Q4_0"]


def test_unknown_names_are_refused_with_a_list(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    with by_name(monkeypatch, folder) as server:
        for name in ("nothing", "broken", str(folder / "Big-1B-F16.gguf"), ":latest"):
            error = server.chat(model=name).json()["error"]
            assert error["code"] == "model_not_found"
            assert all(listed_name in error["message"] for listed_name in NAMES)
        assert "Small-0.5B-Q4_0" in server.chat(model="small").json()["error"]["message"]
        tiny_gguf.write(folder / "later.gguf")
        monkeypatch.setattr(model_pool, "LIST_AGE_S", 0.0)
        assert answering_model(server, "later") == "later"
        (folder / "later.gguf").unlink()
        assert server.get("/v1/models/nothing").status_code == 404


def test_a_reply_continues_while_another_model_opens(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    script = Script(token_gate=Gate())
    with by_name(monkeypatch, folder, script) as server, ThreadPoolExecutor() as pool:
        first = pool.submit(answering_model, server, "big")
        until(lambda: server.metric("requests_running") == 1)
        script.open_gate = Gate()
        futures = [pool.submit(answering_model, server, "small-0.5b-q8") for _ in range(2)]
        until(script.open_gate.waiting.is_set)
        assert script.token_gate is not None
        script.token_gate.open()
        assert first.result() == "Big-1B"
        script.open_gate.open()
        assert [future.result() for future in futures] == ["Small-0.5B-Q8_0"] * 2
        assert opened(server) == ["Big-1B-F16", "Small-0.5B-Q8_0"]


def with_room_for(monkeypatch: pytest.MonkeyPatch, n_models: int) -> None:
    """Simulate memory for a number of models; an encoder takes as much as a model."""
    monkeypatch.setattr(
        model_pool, "_free_memory", lambda: None
    )  # includes objects left by earlier tests
    monkeypatch.setattr(fitting, "machine_memory", lambda: fitting.MachineMemory(1 << 40, n_models))
    monkeypatch.setattr(
        "app.server.served_engine.ServedEngine.claimed_bytes",
        property(lambda self: bool(self.writer)),
    )
    monkeypatch.setattr(
        fitting,
        "fit",
        lambda needs, memory, rates, n_ctx: SimpleNamespace(
            needed_bytes=1 + bool(needs.encoder_bytes)
        ),
    )


def test_the_model_used_longest_ago_is_closed(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    with_room_for(monkeypatch, 2)
    with by_name(monkeypatch, folder) as server:
        for name in ("big", "small-0.5b-q8", "big", "small-0.5b-q4"):
            answering_model(server, name)
        assert opened(server) == ["Big-1B-F16", "Small-0.5B-Q8_0 closed", "Small-0.5B-Q4_0"]
        assert answering_model(server, "small-0.5b-q8") == "Small-0.5B-Q8_0"
        assert opened(server)[0] == "Big-1B-F16 closed"


@pytest.mark.parametrize("mmproj", ["", "off"])
def test_the_encoder_of_the_next_model_needs_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mmproj: str
) -> None:
    tiny_gguf.write(tmp_path / "Blind-1B-F16.gguf", "llama", "F16")
    seer = tiny_gguf.model("qwen3vl", dim=tiny_mmproj.TEXT_WIDTH, head_dim=16)
    families.keyed(seer, **{"rope.dimension_sections": np.array([3, 3, 2, 0], "<i4")}).write(
        tmp_path / "Seer-1B-F16.gguf"
    )
    tiny_mmproj.qwen3vl().write(tmp_path / "mmproj-Seer-1B-F16.gguf")
    with_room_for(monkeypatch, 2)
    settings = built_in_settings()
    settings = replace(
        settings,
        model_directories=(str(tmp_path),),
        pictures=replace(settings.pictures, mmproj=mmproj),
    )
    path = tmp_path / "Blind-1B-F16.gguf"
    with serving(monkeypatch, None, settings=settings, path=path, model_id="") as server:
        answering_model(server, "blind")
        answering_model(server, "seer")
        is_closed = not mmproj
        assert opened(server) == [f"Blind-1B-F16{' closed' * is_closed}", "Seer-1B-F16"]


def test_a_busy_model_is_not_closed(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    with_room_for(monkeypatch, 1)
    script = Script(token_gate=Gate())
    with by_name(monkeypatch, folder, script) as server, ThreadPoolExecutor() as pool:
        first = pool.submit(answering_model, server, "big")
        until(lambda: server.metric("requests_running") == 1)
        monkeypatch.setattr(model_pool, "MEMORY_PATIENCE_S", 0.0)
        assert answering_model(server, "small-0.5b-q8") == "no_memory"
        monkeypatch.setattr(model_pool, "MEMORY_PATIENCE_S", PATIENCE_S)
        second = pool.submit(answering_model, server, "small-0.5b-q8")
        assert script.token_gate is not None
        script.token_gate.open()
        assert (first.result(), second.result()) == ("Big-1B", "Small-0.5B-Q8_0")
        assert opened(server) == ["Big-1B-F16 closed", "Small-0.5B-Q8_0"]


def test_a_failed_allocation_closes_another_model(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    script = Script(open_errors={"Small-0.5B-Q8_0.gguf": MemoryPlanError("small: no room")})
    with by_name(monkeypatch, folder, script) as server:
        answering_model(server, "big")
        assert answering_model(server, "small-0.5b-q8") == "engine_error"
        assert opened(server) == ["Big-1B-F16 closed"]
        script.open_errors = {}
        assert answering_model(server, "small-0.5b-q8") == "Small-0.5B-Q8_0"


def test_a_broken_model_does_not_end_the_server(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    script = Script(open_errors={"Small-0.5B-Q8_0.gguf": BrokenModelError("small: is broken")})
    with by_name(monkeypatch, folder, script) as server:
        assert server.chat(model="small-0.5b-q8").json()["error"]["message"] == "small: is broken"
        assert answering_model(server, "big") == "Big-1B"


def test_an_idle_model_is_closed_and_opens_again(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(model_pool, "IDLE_CHECK_PERIOD_S", 0.02)
    script = Script(token_gate=Gate())
    with by_name(monkeypatch, folder, script, idle_s=0.2) as server, ThreadPoolExecutor() as pool:
        first = pool.submit(answering_model, server, "big")
        until(lambda: server.metric("requests_running") == 1)
        with pytest.raises(futures.TimeoutError):
            first.result(timeout=0.5)
        assert opened(server) == ["Big-1B-F16"]
        assert script.token_gate is not None
        script.token_gate.open()
        assert first.result() == "Big-1B"
        until(lambda: opened(server) == ["Big-1B-F16 closed"])
        assert answering_model(server, "big") == "Big-1B"


def test_the_server_stops_while_a_model_opens(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    script = Script(open_gate=Gate())
    with by_name(monkeypatch, folder, script) as server, ThreadPoolExecutor() as pool:
        waiting = pool.submit(answering_model, server, "big")
        assert script.open_gate is not None
        until(script.open_gate.waiting.is_set)
        server.end()
        assert waiting.result() == "shutting_down"


def test_adapters_of_the_command_line_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(built_in_settings(), adapters=("/x/a.gguf:2",))
    with serving(monkeypatch, settings=settings) as server:
        assert server.script.opened[0].adapter_calls == [[("a.gguf", 2.0)]]
