"""Sessions that share threads: what they compute together is to the bit what each computes
alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model, Sampling, Session
from engine.batch import Batch
from engine.errors import Cancelled, MemoryPlanError
from engine.pipeline import Pipeline
from engine.weights.modes import RESERVE_BYTES
from tests.engine import tiny_gguf
from tests.engine.architectures import KINDS
from tests.engine.families import FAMILIES

pytestmark = pytest.mark.slow

N_CTX = 128
N_STEPS = 6
PROMPTS = [
    np.random.default_rng(seed).integers(3, 250, n).tolist()
    for seed, n in ((1, 5), (2, 40), (3, 1), (4, 17))
]
GREEDY = Sampling(temperature=0.0)


def fed_alone(session: Session, prompt: Sequence[int]) -> list[bytes]:
    """Return the logits of an emptied session after a prompt and after each of the most likely next
    tokens."""
    session.truncate(0)
    rows = [session.feed(prompt)]
    for _ in range(N_STEPS):
        rows.append(session.feed([int(rows[-1].argmax())]))
    return [row.tobytes() for row in rows]


def peers(model: Model, n: int, kv: str = "f16") -> list[Session]:
    first = model.session(n_ctx=N_CTX, kv=kv)
    return [first, *(model.session(peer=first) for _ in range(n - 1))]


def batch_of(sessions: Sequence[Session]) -> Batch:
    assert sessions[0].batch is not None
    return sessions[0].batch


def fed_together(
    sessions: Sequence[Session], prompts: Sequence[Sequence[int]]
) -> list[list[bytes]]:
    """Return the logits of several sessions at once; steps wait until all have their prompt."""
    barrier = threading.Barrier(len(sessions))

    def follow(session: Session, prompt: Sequence[int]) -> list[bytes]:
        rows = [session.feed(prompt)]
        barrier.wait(60)
        assert session.batch is not None
        with session.batch.writing(session.pipeline):
            barrier.wait(60)
            for _ in range(N_STEPS):
                rows.append(session.feed([int(rows[-1].argmax())]))
        return [row.tobytes() for row in rows]

    with ThreadPoolExecutor(len(sessions)) as pool:
        return list(pool.map(follow, sessions, prompts))


@pytest.mark.parametrize("architecture", KINDS)
def test_tokens_among_others_have_the_bits_of_alone(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # so that all are in every step, however busy the machine is
    monkeypatch.setattr("engine.batch.PATIENCE", 1e6)
    model = Model.open(tiny_gguf.model(architecture).write(tmp_path / "m.gguf"), threads=2)
    session = model.session(n_ctx=N_CTX)
    expected = [fed_alone(session, prompt) for prompt in PROMPTS]
    sessions = peers(model, 4)
    assert fed_together(sessions, PROMPTS) == expected
    n_alone = 1  # a prompt of one token
    batch = batch_of(sessions)
    assert (batch.n_steps, batch.n_tokens) == (n_alone + N_STEPS, n_alone + 4 * N_STEPS)
    model.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    described = tiny_gguf.model("llama", n_layers=2)
    opened = Model.open(described.write(tmp_path_factory.mktemp("model") / "m.gguf"), threads=2)
    yield opened
    opened.close()


LONG = np.random.default_rng(8).integers(3, 250, 90).tolist()


@pytest.mark.parametrize("kv", ["f16", "q8_0", "q8_0/q4_0"])
def test_smaller_keys_and_values_keep_their_bits(kv: str, tmp_path: Path) -> None:
    model = Model.open(
        tiny_gguf.model("llama", n_layers=2, head_dim=32).write(tmp_path / "m.gguf"), threads=2
    )
    session = model.session(n_ctx=N_CTX, kv=kv)
    expected = [fed_alone(session, prompt) for prompt in PROMPTS]
    assert fed_together(peers(model, 4, kv), PROMPTS) == expected
    model.close()


@pytest.mark.parametrize("family", ["mistral3", "gemma3"])
def test_what_another_session_holds_is_copied(family: str, tmp_path: Path) -> None:
    model = Model.open(FAMILIES[family]().write(tmp_path / "m.gguf"), threads=2)
    expected = model.session(n_ctx=N_CTX)
    expected.prefill([*LONG, 7])
    first, second = peers(model, 2)
    first.prefill(LONG)
    batch = batch_of([first])
    done: list[int] = []
    second.prefill([*LONG, 7], on_progress=lambda n, _: done.append(n))
    assert batch.n_copied == len(LONG)
    assert second.next_logits.tobytes() == expected.next_logits.tobytes()
    assert second.tokens == expected.tokens
    assert done == [len(LONG) + 1]
    model.close()


@pytest.mark.smoke
def test_replies_side_by_side_are_those_of_alone(model: Model) -> None:
    def reply(session: Session, seed: int) -> list[int]:
        session.prefill(PROMPTS[seed])
        return [
            piece.token_id
            for piece in session.generate(Sampling(seed=seed), max_tokens=40, guess=True)
        ]

    expected = [reply(model.session(n_ctx=N_CTX), seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(reply, peers(model, 4), range(4))) == expected


def test_a_cancelled_reply_costs_the_others_nothing(model: Model) -> None:
    expected = model.session(n_ctx=N_CTX)
    expected.prefill(PROMPTS[0])
    tokens = [piece.token_id for piece in expected.generate(GREEDY, max_tokens=60)]
    first, second = peers(model, 2)
    second.prefill(PROMPTS[1])

    def is_stopped() -> str:
        for index, _ in enumerate(second.generate(GREEDY)):
            if index == 10:
                second.cancel()
        return second.finish_reason

    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(is_stopped)
        first.prefill(PROMPTS[0])
        assert [piece.token_id for piece in first.generate(GREEDY, max_tokens=60)] == tokens
        assert stopped.result(60) == "cancelled"
    assert second.length == len(PROMPTS[1]) + 10


def test_a_cancelled_prompt_leaves_the_line_free(model: Model) -> None:
    first, second = peers(model, 2)
    batch = batch_of([first])
    with ThreadPoolExecutor(1) as pool:
        with batch.use_threads(first.pipeline):
            waiting = pool.submit(second.prefill, LONG)
            while not batch.has_waiting_peers(first.pipeline):
                time.sleep(0.001)
            second.cancel()
        with pytest.raises(Cancelled):
            waiting.result(60)
    assert first.prefill(LONG).fed == len(LONG)


def test_a_broken_walk_ends_every_reply_that_was_in_it(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = peers(model, 2)
    monkeypatch.setattr("engine.batch.PATIENCE", 1e6)

    def broken(self: Pipeline, name: str, steps: Mapping[Pipeline, Any], n_threads: int) -> Any:
        raise MemoryError

    def reply(session: Session) -> str:
        try:
            for _ in session.generate(GREEDY, max_tokens=5):
                pass
        except MemoryError:
            return "broken"
        return session.finish_reason

    for session in sessions:
        session.prefill(PROMPTS[0])
        session.feed([7])  # a step alone, by which others are waited for
    monkeypatch.setattr(Pipeline, "decode_batch", broken)
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        for session in sessions:
            stack.enter_context(batch_of(sessions).writing(session.pipeline))
        assert list(pool.map(reply, sessions)) == ["broken", "broken"]


def test_a_closed_session_is_in_no_walk_any_more(model: Model) -> None:
    first, second, third = peers(model, 3)
    fed_together([first, second, third], PROMPTS[:3])
    second.close()
    session = model.session(n_ctx=N_CTX)
    expected = [fed_alone(session, prompt) for prompt in PROMPTS[:2]]
    first.truncate(0)
    third.truncate(0)
    assert fed_together([first, third], PROMPTS[:2]) == expected


def test_memory_that_others_did_not_write_yet_is_taken(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = model.session(n_ctx=N_CTX)
    monkeypatch.setattr(
        "engine.machine.host.available_memory_bytes", lambda: RESERVE_BYTES + 2 * first.kv_bytes
    )
    second = model.session(peer=first)
    with pytest.raises(MemoryPlanError):
        model.session(peer=second)
