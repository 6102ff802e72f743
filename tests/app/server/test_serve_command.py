"""The whole command in a process of its own, with the bundled model: how it starts, answers and ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from app.program import exit_codes
from tests.app.server.serving import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 240


def command(*argv: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "app", "serve", *argv],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )


def ended(*argv: str, **environment: str) -> tuple[int, str]:
    process = command(*argv, **environment)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert out == b""
    return process.returncode, err.decode()


@contextmanager
def started(*argv: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The command, and the address it says it has; the model is open."""
    process = command("starter", "--port", "0", *argv)
    assert process.stderr is not None
    try:
        line = process.stderr.readline().decode()
        found = re.search(r"at (http://\S+/v1)", line)
        assert found, line + process.stderr.read().decode()
        url = found[1]
        deadline_s = time.monotonic() + PATIENCE_S
        while httpx.get(f"{url.removesuffix('/v1')}/health", trust_env=False).status_code != 200:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        yield process, url
    finally:
        process.kill()
        process.communicate()


def test_a_client_is_answered_after_a_cut_and_ctrl_c_ends_it() -> None:
    import openai

    with started() as (process, url):
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S)
        question = [{"role": "user", "content": "What is the capital of France?"}]
        reply = client.chat.completions.create(model="starter", messages=question, temperature=0, logprobs=True)  # type: ignore[call-overload]
        assert "Paris" in reply.choices[0].message.content
        assert all(one.logprob <= 0 for one in reply.choices[0].logprobs.content)
        assert "".join(one.token for one in reply.choices[0].logprobs.content) == reply.choices[0].message.content

        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [{"city": "Rome"}]}}}
        shaped = client.chat.completions.create(model="starter", messages=question, response_format=form)  # type: ignore[call-overload]
        assert json.loads(shaped.choices[0].message.content) == {"city": "Rome"}
        form = {"type": "regex", "pattern": "("}
        with pytest.raises(openai.BadRequestError, match="invalid regex"):
            client.chat.completions.create(
                model="starter", messages=question, extra_body={"response_format": form}, stream=True
            )  # type: ignore[call-overload]

        prompt, most = "Once upon a time there was", 900
        stream = client.completions.create(
            model="starter", prompt=prompt, stream=True, max_tokens=most, extra_body={"min_p": 0}, temperature=2
        )
        next(iter(stream))
        stream.close()
        metrics = url.removesuffix("/v1") + "/metrics"
        until(lambda: "jalopy_requests_running 0" in httpx.get(metrics, trust_env=False).text)

        said = [*question, {"role": "assistant", "content": reply.choices[0].message.content}]
        asked = client.chat.completions.create(model="starter", messages=[*said, *question], stream=True)  # type: ignore[call-overload]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in asked)

        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == exit_codes.INTERRUPTED
        assert process.stderr is not None
        log = process.stderr.read().decode()
        assert "Traceback" not in log
        assert "capital" not in log
        assert all(line.startswith("jalopy serve: ") for line in log.splitlines())


def test_sigterm_ends_it_cleanly_while_it_answers() -> None:
    with started() as (process, url), httpx.Client(trust_env=False, timeout=PATIENCE_S) as client:
        body = {"prompt": "Once upon a time", "stream": True, "temperature": 5, "min_p": 0, "top_p": 1, "top_k": 0}
        with client.stream("POST", f"{url}/completions", json=body) as answer:
            next(answer.iter_lines())
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == exit_codes.TERMINATED


@pytest.mark.parametrize(
    ("argv", "code", "line"),
    [
        (("nowhere.gguf",), exit_codes.UNREADABLE, "nowhere.gguf"),
        (("starter", "--host", "0.0.0.0"), exit_codes.USAGE, "needs an API key"),
        (("starter", "--host", "nowhere.invalid"), exit_codes.USAGE, "needs an API key"),
        (("starter", "--port", "70000"), exit_codes.USAGE, "0 to 65535"),
        (("starter", "--max-waiting", "0"), exit_codes.USAGE, "whole number"),
        (("starter", "--api-key-file", "/dev/null"), exit_codes.BAD_DATA, "the key must be 16 to 512"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(argv: tuple[str, ...], code: int, line: str) -> None:
    found, err = ended(*argv)
    assert (found, err.count("\n")) == (code, 1)
    assert line in err


def test_an_address_in_use_is_refused_in_one_line() -> None:
    from app.server.command import listen

    with listen("127.0.0.1", 0) as taken:
        code, err = ended("starter", "--port", str(taken.getsockname()[1]))
    assert (code, err.count("\n")) == (exit_codes.IO_ERROR, 1)
    assert "choose another" in err


def test_the_rest_of_the_program_never_imports_them() -> None:
    code = "import sys, app.cli.dispatch, app.cli.run, app.server.command; print('starlette' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"False\n"
