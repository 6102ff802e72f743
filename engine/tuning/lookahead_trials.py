"""Measures how decode should ask memory ahead (``engine.plan.lookahead``), per weight type, on a model's own weights.

Every round walks the same products once with each choice, so that what disturbs the machine disturbs all alike; the
best time of each counts. A choice other than the default must be clearly faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import Cancelled
from engine.kernels.records import MATMUL_SCRATCH_BYTES, STEP
from engine.machine.memory import Memory
from engine.plan import lookahead
from engine.plan.buffers import Activations
from engine.plan.compilation import compile_kernels
from engine.plan.lookahead import CHOICES, USUAL
from engine.plan.lookahead import Lookahead as Lookahead
from engine.plan.plan import Plan

if TYPE_CHECKING:
    from engine.model import Model
    from engine.plan.crew import Crew
    from engine.session import Session
    from engine.weights.weights import Tensor

SAMPLE_BYTES = 64 << 20
"""Weights of one type that a walk reads, about: more than caches hold."""
LEAST_SAMPLE_BYTES = 32 << 20
"""Types of which a model has less are not measured: caches may hold them, and for those the choice hardly matters."""
ROUNDS = 6
CLEARLY = 1.02


def try_lookahead(
    model: Model, session: Session, is_unwanted: Callable[[], bool] = lambda: False, anew: bool = False
) -> dict[str, Lookahead]:
    """Measure the model's weight types that were not measured yet on this processor; use and remember the results.

    Takes about a second a type with the memory of today.

    Args:
        session: of that model; its tokens stay as they are.
        is_unwanted: asked before every walk, each some milliseconds long; returns True to end the measurement.
        anew: measure all types again.

    Returns:
        Weight type -> what was found now; types of which the model has little are left out.

    Raises:
        Cancelled: ``is_unwanted`` returned True, or the session was cancelled; finished types count.
        ModelChangedError: the model file was changed on disk.
    """
    model.refuse_changed_file()
    model.crew.rearm()
    by_type: dict[str, list[Tensor]] = {}
    for tensor in sorted(session.matrices(), key=lambda one: -one.size_bytes):
        sample = by_type.setdefault(tensor.quant, [])
        if sum(one.size_bytes for one in sample) < SAMPLE_BYTES:
            sample.append(tensor)
    found = {}
    try:
        for quant, sample in by_type.items():
            is_large = sum(one.size_bytes for one in sample) >= LEAST_SAMPLE_BYTES
            if is_large and (anew or quant not in lookahead.remembered()):
                found[quant] = _best(model.crew, sample, model.threads, is_unwanted)
                lookahead.remember(quant, found[quant])
    finally:
        session.look_ahead()
    return found


def _best(crew: Crew, sample: Sequence[Tensor], threads: int, is_unwanted: Callable[[], bool]) -> Lookahead:
    tables = {ahead: _Walk(sample, threads, ahead) for ahead in CHOICES}
    best_s = dict.fromkeys(CHOICES, float("inf"))
    for n in range(ROUNDS + 1):
        for ahead, walk in tables.items():
            if is_unwanted():
                raise Cancelled("the measurement was stopped")
            started_s = time.perf_counter()
            crew.walk_whole(walk.table, threads)
            if n:  # the first round brings the weights in
                best_s[ahead] = min(best_s[ahead], time.perf_counter() - started_s)
    ahead = min(best_s, key=lambda one: best_s[one])
    if best_s[USUAL] < CLEARLY * best_s[ahead]:
        ahead = USUAL
    n_bytes = sum(tensor.size_bytes for tensor in sample)
    return Lookahead(ahead, n_bytes / best_s[ahead] / 1e9, n_bytes / best_s[USUAL] / 1e9)


class _Walk:
    """Products of some matrices with one column each, with one choice."""

    def __init__(self, sample: Sequence[Tensor], threads: int, ahead: int) -> None:
        self._step, self._tokens = Memory(128), Memory(64)
        self._scratch = Memory(MATMUL_SCRATCH_BYTES * threads)
        words = self._step.array(np.int64, (16,))
        words[STEP.tokens // 8], words[STEP.n_tokens // 8] = self._tokens.address, 1
        self._plan = Plan(self._step.address, 1, (self._scratch.address, MATMUL_SCRATCH_BYTES), threads)
        inputs = {n: Activations("x", n, 1) for n in {tensor.n_cols for tensor in sample}}
        self._out = Activations("out", max(tensor.n_rows for tensor in sample), 1)
        for n, x in inputs.items():
            x.array()[:] = 1.0
            self._plan.quantize(x, *(tensor for tensor in sample if tensor.n_cols == n))
        self._inputs = inputs
        self._plan.barrier()
        for tensor in sample:
            self._plan.matmul(tensor, inputs[tensor.n_cols], self._out)
            self._plan.barrier()
        self._plan.look_ahead(lambda quant: ahead)
        self.table = self._plan.table(compile_kernels(self._plan.kernels()))
