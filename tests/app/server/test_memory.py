"""Tests that the memory of an answered request is free without the garbage collector."""

from __future__ import annotations

import gc
import json
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app.server.api_error import ApiError
from app.server.completion_request import CompletionRequest
from app.server.fields import Fields
from app.server.reply_task import PendingRequest, ReplyTask
from tests.app.server.serving import Serving, until

N_ITEMS = 70_001
"""Number of items that identifies a list; its body is so large that a thread reads it."""
HELD = (ApiError, json.JSONDecodeError, Fields, CompletionRequest, ReplyTask, PendingRequest)


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def count_objects() -> Counter[str]:
    """Count the living objects of requests and the lists in them."""
    counts = Counter[str]()
    for item in gc.get_objects():
        if isinstance(item, HELD):
            counts[type(item).__name__] += 1
        elif type(item) in (list, tuple) and len(item) == N_ITEMS:
            counts["items"] += 1
    return counts


def items(item: Any) -> list[Any]:
    return [item] * N_ITEMS


REFUSED: list[tuple[str, Any]] = [
    ("/v1/completions", {"prompt": items(1)}),
    ("/v1/completions", {"prompt": items(-1)}),
    ("/v1/completions", {"prompt": items("a")}),
    ("/v1/completions", {"prompt": items(1), "stream": True}),
    ("/v1/completions", {"prompt": "a", "logit_bias": items(1)}),
    ("/v1/chat/completions", {"messages": items(1)}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 100_000}]}),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "word " * 100_000}], "stream": True},
    ),
    ("/v1/responses", {"input": items(1)}),
    ("/v1/embeddings", {"input": items(1)}),
    ("/v1/embeddings", {"input": items("a")}),
    ("/v1/rerank", {"query": "a", "documents": items("a")}),
    ("/tokenize", {"content": items("a")}),
    ("/detokenize", {"tokens": items(10**9)}),
    ("/api/chat", {"messages": items(1)}),
    ("/api/generate", {"prompt": items(1)}),
    ("/api/embed", {"input": items(1)}),
    ("/api/embeddings", {"prompt": items(1)}),
    ("/api/show", {"model": items(1)}),
    ("/nowhere", {"model": items(1)}),
    ("/v1/completions", items(1)),
    ("/v1/completions", b"[" * 100_000),
    ("/v1/completions", b'{"prompt": "' + b"a" * 100_000),
    ("/v1/completions", b'{"prompt": ' + b"9" * 100_000 + b"}"),
    ("/v1/completions", b'{"prompt": "\xff' + b"a" * 100_000),
]


@pytest.mark.parametrize(("path", "body"), REFUSED)
def test_a_refused_request_leaves_nothing(shared: Serving, path: str, body: Any) -> None:
    shared.post(path, body)  # creates the objects that are made only once
    with without_collector():
        objects_before = count_objects()
        answer = shared.post(path, body)
        assert 400 <= answer.status_code < 600
        assert "error" in answer.json()
        until(lambda: count_objects() <= objects_before)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answered_request_leaves_nothing(shared: Serving, is_streamed: bool) -> None:
    shared.chat(stream=is_streamed)
    with without_collector():
        objects_before = count_objects()
        assert shared.chat(stream=is_streamed).status_code == 200
        until(lambda: count_objects() <= objects_before)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the allocator of glibc")
def test_memory_of_large_bodies_is_given_back() -> None:
    script = """
import psutil
from app.program.garbage import keep_memory_together
keep_memory_together()
block = bytearray(b"a") * (30 << 20)
del block  # without limits, glibc keeps smaller blocks from now on
blocks = [bytearray(b"a") * (4 << 20) for _ in range(20)]
before = psutil.Process().memory_info().rss
last = blocks.pop()
blocks.clear()
print(before - psutil.Process().memory_info().rss)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(done.stdout) > 60 << 20
