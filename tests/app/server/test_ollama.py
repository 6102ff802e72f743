"""Tests of Ollama's dialect: requests, lines of JSON, descriptions of models."""

from __future__ import annotations

import json
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from app.server import model_pool
from app.server.dialects.ollama import read_chat_request, read_generate_request
from app.server.fields import Fields
from engine.errors import BrokenModelError
from tests.app.fake_engine import Gate, Script
from tests.app.server.serving import Serving, serving, until
from tests.app.server.test_model_pool import by_name, opened

HI = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
}


def send(server: Serving, path: str = "chat", **fields: Any) -> Any:
    body = {"messages": HI} if path == "chat" else {"prompt": "hi"}
    return server.post(f"/api/{path}", {"model": "m", "stream": False, **body, **fields}).json()


def test_a_chat_is_streamed_in_lines_by_default(server: Serving) -> None:
    reply = server.post("/api/chat", {"model": "m", "messages": HI})
    assert reply.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == "Paris."
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    last = lines[-1]
    complete = send(server)
    assert (complete["message"], complete["done"]) == (
        {"role": "assistant", "content": "Paris."},
        True,
    )
    for answer in (last, complete):
        assert answer["done_reason"] == "stop"
        assert (answer["prompt_eval_count"], answer["eval_count"]) == (5, 3)
        assert answer["model"] == "m"
        assert answer["total_duration"] >= answer["load_duration"] >= 0
        assert answer["total_duration"] > 0
        assert datetime.fromisoformat(answer["created_at"].replace("Z", "+00:00")).tzinfo


def test_head_requests_are_answered(shared: Serving) -> None:
    assert shared.get("/").text == "Ollama is running"
    for path in (
        "/",
        "/v1",
        "/api/tags",
        "/api/version",
        "/api/ps",
        "/v1/models",
        "/health",
        "/metrics",
        "/props",
    ):
        answer = shared.client.head(shared.url + path)
        assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    ("keep_alive", "is_closed"),
    [
        *((keep_alive, True) for keep_alive in (0, 0.0, "0", "0s", "0m", "0h0m0s", "-0s", "0.0s")),
        *(
            (kept, False)
            for kept in (
                -1,
                "-1",
                "-1s",
                "5m",
                "24h",
                300,
                1.5,
                "1.5h",
                None,
                "",
                False,
                "soon",
                [],
                {},
            )
        ),
    ],
)
def test_a_keep_alive_of_zero_closes_the_model(keep_alive: Any, is_closed: bool) -> None:
    assert (
        read_chat_request(Fields({"messages": HI, "keep_alive": keep_alive}), "").unloads_model
        is is_closed
    )


def test_a_text_is_generated_by_the_template_or_raw(server: Serving) -> None:
    complete = send(server, "generate", prompt="hi", system="be brief", options={"num_predict": 2})
    assert (complete["response"], complete["done_reason"], complete["eval_count"]) == (
        "Paris",
        "length",
        2,
    )
    session = server.script.opened[0].sessions[0]
    assert session.model.tokenizer.decode(session.tokens) == "be briefhiParis"
    assert send(server, "generate", prompt="Once upon", raw=True)["prompt_eval_count"] == 3
    lines = server.post("/api/generate", {"prompt": "hi"}).text.splitlines()
    assert "".join(json.loads(line)["response"] for line in lines) == "Paris."


def test_options_are_read_and_unknown_ones_collected() -> None:
    options = {
        "num_predict": -1,
        "temperature": 0.5,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 7,
        "stop": ["x"],
        "num_ctx": 9,
    }
    fields = Fields(
        {
            "model": "m:latest",
            "messages": HI,
            "options": options,
            "keep_alive": "5m",
            "think": "low",
        }
    )
    request = read_chat_request(fields, "m")
    assert request.sampling == {"temperature": 0.5, "top_k": 3, "min_p": 0.1, "seed": 7}
    assert (request.max_tokens, request.stop_strings, request.is_streamed, request.thinking) == (
        0,
        ("x",),
        True,
        "low",
    )
    assert (request.unloads_model, fields.ignored) == (False, {"options.num_ctx"})
    assert (
        read_generate_request(
            Fields({"prompt": "a", "think": False, "keep_alive": 0}), "m"
        ).thinking
        == "off"
    )
    form = read_generate_request(Fields({"prompt": "a", "format": {"enum": [1]}}), "m").form
    assert form is not None
    assert form.text == '{"enum": [1]}'
    assert read_chat_request(Fields({"messages": HI, "format": "json"}), "m").form is not None


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"messages": [{**HI[0], "images": ["?"]}]}, "messages[0].images[0]"),
        ({"messages": "hi"}, "messages"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"num_predict": "all"}}, "options.num_predict"),
        ({"options": [1]}, "options"),
        ({"format": "xml"}, "format"),
        ({"think": "much"}, "think"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ],
)
def test_an_ollama_error_is_one_text(server: Serving, fields: dict[str, Any], word: str) -> None:
    reply = send(server, **fields)
    assert list(reply) == ["error"]
    assert reply["error"].startswith(word)


def test_other_ollama_errors_are_one_text(monkeypatch: pytest.MonkeyPatch, server: Serving) -> None:
    for path, fields in (
        ("generate", {"suffix": "end"}),
        ("embeddings", {}),
        ("pull", {}),
        ("nothing", {}),
    ):
        assert isinstance(send(server, path, **fields)["error"], str)
    assert server.get("/api/chat").json()["error"].startswith("/api/chat does not support")
    assert server.get("/api/tags", headers={"Origin": "https://evil.example"}).status_code == 403
    server.script.generate_error = BrokenModelError("m: is broken")
    server.script.fail_after_tokens = 1
    assert json.loads(server.post("/api/chat", {"messages": HI}).text.splitlines()[-1]) == {
        "error": "m: is broken"
    }
    with serving(monkeypatch, api_key="a-key-of-twenty-chars") as locked:
        assert "key" in locked.get("/api/tags").json()["error"]


def test_calls_have_arguments_as_an_object(server: Serving) -> None:
    server.script.replies = [
        ['<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'],
        ["Rain."],
    ]
    message = send(server, tools=[TOOL])["message"]
    assert message["tool_calls"] == [
        {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    ]
    result = {"role": "tool", "content": "rain", "tool_name": "weather"}
    assert (
        send(server, messages=[*HI, message, result], tools=[TOOL])["message"]["content"] == "Rain."
    )


def test_a_thought_has_its_own_field(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, Script(replies=[["<think>", "hm", "</think>", "Yes"]])) as server:
        assert send(server)["message"] == {"role": "assistant", "content": "Yes", "thinking": "hm"}
        assert send(server, "generate")["thinking"] == "hm"


def test_a_waiting_stream_sends_empty_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.server.routes.KEEP_ALIVE_S", 0.05)
    script = Script(token_gate=Gate())
    with serving(monkeypatch, script) as server, ThreadPoolExecutor() as pool:
        reply = pool.submit(server.post, "/api/chat", {"messages": HI})
        until(lambda: server.metric("requests_running") == 1)
        with pytest.raises(futures.TimeoutError):
            reply.result(timeout=0.3)
        assert script.token_gate is not None
        script.token_gate.open()
        lines = [json.loads(line) for line in reply.result().text.splitlines()]
        assert lines[0]["message"] == {"role": "assistant", "content": ""}
        assert "".join(line["message"]["content"] for line in lines) == "Hello there."


def test_models_are_described_without_opening_them(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(model_pool, "IDLE_CHECK_PERIOD_S", 0.02)
    with by_name(monkeypatch, folder, idle_s=60.0) as server:
        tags = {model["name"]: model for model in server.get("/api/tags").json()["models"]}
        big = tags["Big-1B:latest"]
        assert big["size"] == (folder / "Big-1B-F16.gguf").stat().st_size
        details = big["details"]
        assert (details["family"], details["quantization_level"], len(big["digest"])) == (
            "llama",
            "F16",
            64,
        )
        description = server.post("/api/show", {"model": "big-1b:latest"}).json()
        assert description["model_info"]["llama.context_length"] > 0
        assert description["capabilities"] == ["completion"]
        assert int(server.get("/api/version").json()["version"].split(".")[1]) >= 6
        assert server.post("/api/show", {"model": "none"}).status_code == 404
        assert (opened(server), server.get("/api/ps").json()) == ([], {"models": []})

        assert send(server, model="Big-1B:latest", messages=[])["done_reason"] == "load"
        (open_now,) = server.get("/api/ps").json()["models"]
        assert (open_now["name"], open_now["context_length"], open_now["size_vram"]) == (
            "Big-1B:latest",
            512,
            0,
        )
        assert (
            send(server, "generate", model="big-1b", prompt="", keep_alive=0)["done_reason"]
            == "unload"
        )
        until(lambda: opened(server) == ["Big-1B-F16 closed"])
        assert send(server, model="big-1b", keep_alive="0s")["message"]["content"] == "Hello there."
        until(lambda: opened(server) == ["Big-1B-F16 closed"] * 2)
        assert (
            send(server, "generate", model="small-0.5b-q8", prompt="", keep_alive=0)["done_reason"]
            == "unload"
        )
        assert len(opened(server)) == 2
