"""A conversation that goes on after the server was started again reads only what is new."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.server.tiny_server import tiny_server

QUESTION = {"role": "user", "content": "How is the weather in the north? " * 8}


def ask(client: httpx.Client, messages: list[dict[str, Any]]) -> tuple[str, int, int, int]:
    """Return the text of a reply, and the tokens of the prompt, of its cached part and of the
    reply."""
    body = {"messages": messages, "max_tokens": 40, "seed": 3, "temperature": 1.5}
    answer = client.post("/v1/chat/completions", json=body).json()
    usage = answer["usage"]
    n_cached = usage["prompt_tokens_details"]["cached_tokens"]
    text = answer["choices"][0]["message"]["content"]
    return text, usage["prompt_tokens"], n_cached, usage["completion_tokens"]


@pytest.mark.parametrize("restarts", [False, True])
def test_the_tokens_of_a_reply_are_not_read_again(tmp_path: Path, restarts: bool) -> None:
    messages: list[dict[str, Any]] = [QUESTION]
    n_before = 0
    clients = [tiny_server(tmp_path, saves=True)]
    if restarts:
        clients = [tiny_server(tmp_path, saves=True) for _ in range(3)]
    for server in clients:
        with server as client:
            for _ in range(3 // len(clients)):
                text, n_prompt, n_cached, n_written = ask(client, messages)
                assert n_written > 20
                # The last token of a reply is not in the cache.
                assert n_cached >= n_before - 1
                n_before = n_prompt + n_written
                messages.append({"role": "assistant", "content": text})
                messages.append({"role": "user", "content": "And in the south?"})
