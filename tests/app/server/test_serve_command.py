"""Tests of ``jalopy serve`` in its own process, with the bundled model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.cli import arguments
from app.cli.dispatch import run_command
from app.program import exit_codes
from app.program.refusals import Refusal, exit_code_of
from app.server.command import listen
from engine.errors import EngineError
from tests.app.server.serving import until
from tests.app.server.test_api import events_of

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 240


@contextmanager
def start_server() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start the command; yield the process and its address when the model is open."""
    command = [sys.executable, "-m", "app", "serve", "starter", "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env={**os.environ})
    assert process.stderr is not None
    try:
        line = process.stderr.readline().decode()
        match = re.search(r"at (http://\S+)/v1", line)
        assert match, line + process.stderr.read().decode()
        while b" ready " not in (line := process.stderr.readline()):
            assert line, "it has ended"
        yield process, match[1]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_client_is_answered_after_a_cut_and_ctrl_c_ends_it() -> None:
    with (
        start_server() as (process, url),
        httpx.Client(base_url=url, trust_env=False, timeout=PATIENCE_S) as http,
    ):
        question = [{"role": "user", "content": "What is the capital of France?"}]

        def answer_to(messages: list[dict[str, str]], **fields: Any) -> httpx.Response:
            return http.post(
                "/v1/chat/completions", json={"model": "starter", "messages": messages, **fields}
            )

        reply = answer_to(question, temperature=0, logprobs=True).json()["choices"][0]
        text = reply["message"]["content"]
        assert "Paris" in text
        assert all(token["logprob"] <= 0 for token in reply["logprobs"]["content"])
        assert "".join(token["token"] for token in reply["logprobs"]["content"]) == text

        form = {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"enum": [{"city": "Rome"}]}},
        }
        shaped = answer_to(question, response_format=form).json()
        assert json.loads(shaped["choices"][0]["message"]["content"]) == {"city": "Rome"}
        refused = answer_to(
            question, response_format={"type": "regex", "pattern": "("}, stream=True
        )
        assert (refused.status_code, "invalid regex" in refused.text) == (400, True)

        endless = {
            "prompt": "Once upon a time",
            "stream": True,
            "temperature": 5,
            "min_p": 0,
            "top_p": 1,
            "top_k": 0,
        }
        with http.stream("POST", "/v1/completions", json=endless) as answer:
            next(answer.iter_lines())
        until(lambda: "jalopy_requests_running 0" in http.get("/metrics").text)

        messages = [*question, {"role": "assistant", "content": text}]
        chunks = events_of(answer_to([*messages, *question], stream=True).text)
        assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)

        with http.stream("POST", "/v1/completions", json=endless) as answer:
            next(answer.iter_lines())
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == exit_codes.INTERRUPTED
        assert process.stderr is not None
        log = process.stderr.read().decode()
        assert "Traceback" not in log
        assert "capital" not in log
        assert all(line.startswith("jalopy serve: ") for line in log.splitlines())


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ("--pictures /no/such/folder", exit_codes.UNREADABLE, "no such folder for pictures"),
        ("nowhere.gguf", exit_codes.UNREADABLE, "nowhere.gguf"),
        ("starter --host 0.0.0.0", exit_codes.USAGE, "needs an API key"),
        ("starter --host nowhere.invalid", exit_codes.USAGE, "needs an API key"),
        ("starter --idle-minutes 3", exit_codes.USAGE, "leave MODEL out"),
        ("--alias x", exit_codes.USAGE, "--alias names one model"),
        ("starter --api-key-file /dev/null", exit_codes.UNREADABLE, "is not a file"),
    ],
)
def test_wrong_options_are_refused_in_one_line(argv: str, code: int, words: str) -> None:
    with pytest.raises((Refusal, EngineError), match=words) as refused:
        run_command(arguments.parse(["serve", *argv.split()]))
    assert (exit_code_of(refused.value), str(refused.value).count("\n")) == (code, 0)


@pytest.mark.parametrize(
    ("argv", "words"), [("--port 70000", "0 to 65535"), ("--max-waiting 0", "whole number")]
)
def test_a_number_has_limits(argv: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments.parse(["serve", *argv.split()])
    assert words in capsys.readouterr().err


def test_an_address_in_use_is_refused_in_one_line() -> None:
    with (
        listen("127.0.0.1", 0) as socket,
        pytest.raises(Refusal, match="choose another") as refused,
    ):
        listen("127.0.0.1", socket.getsockname()[1])
    assert refused.value.exit_code == exit_codes.IO_ERROR
