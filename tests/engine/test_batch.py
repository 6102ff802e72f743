"""Sessions beside each other: what they compute together is to the bit what each computes alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from engine import Model, Sampling, Session
from engine.batch import Batch
from engine.models import ARCHITECTURES
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow

N_CTX, N_STEPS = 128, 12
PROMPTS = [np.random.default_rng(seed).integers(3, 250, n).tolist() for seed, n in ((1, 5), (2, 40), (3, 1), (4, 17))]
GREEDY = Sampling(temperature=0.0)


def fed_alone(session: Session, prompt: Sequence[int]) -> list[bytes]:
    """The logits after a prompt and after each of the likeliest tokens that follow it."""
    logits = session.feed(prompt)
    rows = [logits]
    for _ in range(N_STEPS):
        rows.append(session.feed([int(rows[-1].argmax())]))
    return [row.tobytes() for row in rows]


def beside(model: Model, n: int, kv: str = "f16") -> list[Session]:
    first = model.session(n_ctx=N_CTX, kv=kv)
    return [first, *(model.session(beside=first) for _ in range(n - 1))]


def batch_of(sessions: Sequence[Session]) -> Batch:
    assert sessions[0].batch is not None
    return sessions[0].batch


def fed_together(sessions: Sequence[Session], prompts: Sequence[Sequence[int]]) -> list[list[bytes]]:
    """The same of several at once; steps wait until all have their prompt."""
    ready = threading.Barrier(len(sessions))

    def follow(session: Session, prompt: Sequence[int]) -> list[bytes]:
        rows = [session.feed(prompt)]
        ready.wait(60)
        assert session.batch is not None
        with session.batch.writing(session.pipeline):
            ready.wait(60)
            for _ in range(N_STEPS):
                rows.append(session.feed([int(rows[-1].argmax())]))
        return [row.tobytes() for row in rows]

    with ThreadPoolExecutor(len(sessions)) as pool:
        return list(pool.map(follow, sessions, prompts))


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_tokens_among_others_have_the_bits_of_alone(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.batch.PATIENCE_S", 60.0)  # so that all are in every step, however busy the machine is
    model = Model.open(tiny_gguf.model(architecture).write(tmp_path / "m.gguf"), threads=2)
    wanted = [fed_alone(model.session(n_ctx=N_CTX), prompt) for prompt in PROMPTS]
    sessions = beside(model, 4)
    assert fed_together(sessions, PROMPTS) == wanted
    n_alone = 1  # a prompt of one token
    found = batch_of(sessions)
    assert (found.n_steps, found.n_tokens) == (n_alone + N_STEPS, n_alone + 4 * N_STEPS)
    model.close()
