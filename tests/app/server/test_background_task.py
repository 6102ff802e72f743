"""Tests of short work between the steps of replies, and of long encodings."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from app.conversations.conversation import PromptMessage
from app.server.api_error import ApiError
from app.server.background_task import BackgroundTask
from app.server.message_order import count_bytes
from engine.errors import Cancelled
from engine.tokenizer import Tokenizer
from engine.tokenizer.pauses import PERIOD_STEPS, pause, pausing
from tests.app.fake_engine import FakeTokenizer, Gate, Script
from tests.app.server.serving import PATIENCE_S, Serving, serving, until
from tests.app.server.test_hostile_clients import HEAD, REQUEST, cut
from tests.engine.prompt.test_chat_prompt import BYTES, PIECES

NEVER_S = 1e12
AT_ONCE_S = 0.0
GONE = ApiError("gone")


def in_steps(n: int) -> Any:
    """Return a function with several steps, and a list as its model that records them."""

    def work(model: list[int]) -> list[int]:
        for step in range(n):
            model.append(step)
            pause()
        return model

    return work, []


def test_work_continues_where_its_slice_ended() -> None:
    work, model = in_steps(3)
    aside = BackgroundTask(work, lambda error: error)
    steps = []
    while not aside.advance(model, AT_ONCE_S):
        steps.append(len(model))
    assert (steps, aside.future.result(PATIENCE_S)) == ([1, 2, 3], [0, 1, 2])


def test_short_work_is_done_in_its_first_slice() -> None:
    work, model = in_steps(50)
    aside = BackgroundTask(work, lambda error: error)
    assert aside.advance(model, NEVER_S)
    assert len(aside.future.result(PATIENCE_S)) == 50


@pytest.mark.parametrize("n_slices", [0, 2])
def test_a_cancelled_task_ends(n_slices: int) -> None:
    work, model = in_steps(1000)
    task = BackgroundTask(work, lambda error: error)
    for _ in range(n_slices):
        assert not task.advance(model, AT_ONCE_S)
    task.end(GONE)
    assert task.advance(model, NEVER_S)
    assert task.future.exception(PATIENCE_S) is GONE
    until(lambda: not any(thread.name == "jalopy-background" for thread in threading.enumerate()))
    assert len(model) == n_slices


def test_a_failing_task_reports_its_error() -> None:
    def fails(model: Any) -> None:
        raise ValueError("no")

    aside = BackgroundTask(fails, lambda error: ApiError(f"because: {error}"))
    assert aside.advance(None, NEVER_S)
    assert str(aside.future.exception(PATIENCE_S)) == "because: no"


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["byte-level", "sentencepiece"])
@pytest.mark.parametrize(
    "text", ["ab" * 5 * PERIOD_STEPS, "a b " * 5 * PERIOD_STEPS], ids=["one word", "many words"]
)
def test_a_long_encoding_pauses_and_can_be_ended(tokenizer: Tokenizer, text: str) -> None:
    pauses: list[int] = []
    with pausing(lambda: pauses.append(1)):
        ids = tokenizer.encode(text)
    assert len(pauses) >= 4
    assert ids == tokenizer.encode(text)  # pauses do nothing any more
    n_before = len(pauses)

    def refuse() -> None:
        raise Cancelled

    with pytest.raises(Cancelled), pausing(refuse):
        tokenizer.encode(text)
    assert len(pauses) == n_before


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES], ids=["byte-level", "sentencepiece"])
def test_no_token_is_longer_than_the_longest(tokenizer: Tokenizer) -> None:
    lengths = [len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size)]
    # A plain text prompt may contain the texts of control tokens.
    spelled = max(map(len, tokenizer.control_texts))
    assert max(lengths) <= tokenizer.most_token_bytes <= max(3 * max(lengths), spelled)


def test_bytes_of_all_printed_messages_are_counted() -> None:
    messages = [
        PromptMessage("system", "é"),
        PromptMessage("user", "ab"),
        PromptMessage("assistant", "x" * 99),
        PromptMessage("tool", "\ud800c"),
    ]
    assert count_bytes(messages) == 2 + 2 + 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
def test_a_long_prompt_is_refused_before_it_is_tokenized(
    server: Serving, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    server.script.opened[0].tokenizer.most_token_bytes = 4
    monkeypatch.setattr(
        FakeTokenizer, "encode", lambda *arguments, **options: pytest.fail("it was tokenised")
    )
    text = "x" * (4 * server.script.n_ctx + 1)
    fields = {"input": text, "prompt": text, "messages": [{"role": "user", "content": text}]}
    answer = server.post(path, fields if path != "/v1/responses" else {"input": text})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "2049 bytes" in answer.json()["error"]["message"]
    assert "jalopy serve --ctx" in answer.json()["error"]["message"]


class Endless:
    """Encoding of a text that does not end until a pause ends it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        self.n_steps = 0
        encode = FakeTokenizer.encode

        def long_encode(
            tokenizer: FakeTokenizer, prompt: str, *arguments: Any, **options: Any
        ) -> list[int]:
            while prompt == text:
                self.n_steps += 1
                time.sleep(0.001)
                pause()
            return encode(tokenizer, prompt, *arguments, **options)

        monkeypatch.setattr(FakeTokenizer, "encode", long_encode)


def test_a_leaving_client_ends_the_encoding_of_its_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(monkeypatch) as server:
        endless = Endless(monkeypatch, "hi")
        connection = server.raw()
        connection.sendall(REQUEST)
        until(lambda: endless.n_steps > 3)
        cut(connection)
        until(lambda: server.metric("requests_running") == 0)
        assert server.metric("clients_gone_total") == 1
        assert server.chat("something else").status_code == 200


def test_replies_continue_during_a_long_token_count(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(replies=[["word "] * 400], token_gate=Gate())
    with serving(monkeypatch, script) as server:
        endless = Endless(monkeypatch, "much")
        running = server.raw()
        counting = server.raw()
        running.sendall(REQUEST)
        assert script.token_gate is not None
        until(script.token_gate.waiting.is_set)
        body = json.dumps({"content": "much"}).encode()
        counting.sendall(HEAD.replace(b"/v1/chat/completions", b"/tokenize") % len(body) + body)
        until(lambda: server.n_background_tasks == 1)
        for _ in range(3):  # each token of the reply gives the count some time
            steps_before = endless.n_steps
            script.token_gate.allow(1)
            until(lambda: endless.n_steps > steps_before)  # noqa: B023 - called at once
            until(script.token_gate.waiting.is_set)
        cut(counting)
        until(lambda: 'route="/tokenize",status="499"} 1' in server.get("/metrics").text)
        cut(running)
        until(lambda: server.metric("requests_running") == 0)
        assert server.metric("generated_tokens_total") >= 3
        until(
            lambda: not any(thread.name == "jalopy-background" for thread in threading.enumerate())
        )
