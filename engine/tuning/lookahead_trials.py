"""Measures how decode should ask memory ahead (``engine.plan.lookahead``), per weight type, on a
model's own weights.

Every round walks the same products once with each choice, so that what disturbs the machine
disturbs all alike; the best time of each counts. A choice other than the default must be clearly
faster. What is walked between two readings of a matrix is what a token reads, or twice what caches
hold: 64 MB read again and again come from the cache of a server.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

import numpy as np

from engine.errors import Cancelled
from engine.kernels.records import MATMUL_SCRATCH_BYTES, STEP
from engine.machine.memory import Memory
from engine.machine.topology import last_cache_bytes
from engine.model import Model
from engine.plan import lookahead
from engine.plan.buffers import Activations
from engine.plan.compilation import compile_kernels
from engine.plan.crew import Crew
from engine.plan.lookahead import CHOICES, default_choice
from engine.plan.lookahead import Lookahead as Lookahead
from engine.plan.plan import Plan
from engine.session import Session
from engine.weights.weights import FACTORS, Tensor

SAMPLE_BYTES = 64 << 20
"""Weights of one type that a walk reads, about, where twice the last level of the cache is not
more."""
LEAST_SAMPLE_BYTES = 32 << 20
"""Types of which a model larger than the cache has less are not measured: the choice hardly matters
for them."""
ROUNDS = 6
CACHED_ROUNDS = 30
CLEARLY = 1.02
HOPELESS = 1.3
"""A choice that is so many times slower than another after two rounds is not walked again."""


def try_lookahead(
    model: Model,
    session: Session,
    is_unwanted: Callable[[], bool] = lambda: False,
    again: bool = False,
) -> dict[str, Lookahead]:
    """Measure the model's weight types that were not measured yet on this processor; use and
    remember the results.

    One thread and those in use are measured separately. Takes about two seconds a type with the
    memory of today.

    Args:
        session: of that model; its tokens stay as they are.
        is_unwanted: asked before every walk, each some milliseconds long; returns True to end the
            measurement.
        again: measure all types, also those measured before.

    Returns:
        ``Reading.key`` of a weight type -> what was found now; types of which the model has little
        are left out.

    Raises:
        Cancelled: ``is_unwanted`` returned True, or the session was cancelled; finished thread
            counts count.
        ModelChangedError: the model file was changed on disk.
    """
    model.refuse_changed_file()
    model.crew.clear_cancel()
    found: dict[str, Lookahead] = {}
    try:
        for threads in sorted({model.threads, 1}, reverse=True):
            reading = session.pipeline.reading(threads)
            samples = _samples(_matrices(session), 0 if reading.is_cached else LEAST_SAMPLE_BYTES)
            if not again and all(
                reading.key(quant) in lookahead.measured_choices() for quant in samples
            ):
                continue
            trial = _Trial(model.crew, samples, threads, is_unwanted)
            if reading.is_cached:
                rounds = CACHED_ROUNDS
            else:
                rounds = ROUNDS
            for quant, one in trial.run(rounds, default_choice()).items():
                found[reading.key(quant)] = one
                lookahead.save_choice(reading.key(quant), one)
    finally:
        session.pipeline.look_ahead()
    return found


def _matrices(session: Session) -> list[Tensor]:
    """Return the matrices that a decode step reads, without those of adapters."""
    matrices = session.pipeline.plans["decode"].matrices()
    return [tensor for tensor in matrices if not tensor.name.endswith(FACTORS)]


def _samples(matrices: Sequence[Tensor], least_bytes: int) -> dict[str, list[Tensor]]:
    """Return matrices of each type: all, or as much as no cache holds from one round to the
    next."""
    by_type: dict[str, list[Tensor]] = {}
    for tensor in sorted(matrices, key=lambda one: -one.size_bytes):
        by_type.setdefault(tensor.quant, []).append(tensor)
    share = 2 * last_cache_bytes() / max(1, sum(one.size_bytes for one in matrices))
    samples = {}
    for quant, tensors in by_type.items():
        most_bytes = max(SAMPLE_BYTES, share * sum(one.size_bytes for one in tensors))
        before = accumulate((one.size_bytes for one in tensors), initial=0)
        samples[quant] = [
            one for one, n_bytes in zip(tensors, before, strict=False) if n_bytes < most_bytes
        ]
    return {
        quant: one
        for quant, one in samples.items()
        if sum(each.size_bytes for each in one) >= least_bytes
    }


class _Trial:
    """Walks of all types in turn, as a token reads them, so that caches hold of one what they hold
    in decode."""

    def __init__(
        self,
        crew: Crew,
        samples: Mapping[str, Sequence[Tensor]],
        threads: int,
        is_unwanted: Callable[[], bool],
    ) -> None:
        self._crew = crew
        self._threads = threads
        self._is_unwanted = is_unwanted
        self._walks = {quant: _Walk(sample, threads) for quant, sample in samples.items()}
        self._best_s = {quant: dict.fromkeys(CHOICES, float("inf")) for quant in samples}

    def run(self, rounds: int, default: int) -> dict[str, Lookahead]:
        for n in range(rounds + 1):  # the first brings the weights in
            for ahead in CHOICES:
                for quant, walk in self._walks.items():
                    if n > 2 and self._is_hopeless(quant, ahead, default):
                        continue
                    if self._is_unwanted():
                        raise Cancelled("the measurement was stopped")
                    seconds = walk.seconds(self._crew, self._threads, ahead)
                    if n:
                        self._best_s[quant][ahead] = min(self._best_s[quant][ahead], seconds)
        return {
            quant: self._found(walk.n_bytes, self._best_s[quant], default)
            for quant, walk in self._walks.items()
        }

    def _is_hopeless(self, quant: str, ahead: int, default: int) -> bool:
        best_s = self._best_s[quant]
        return ahead != default and best_s[ahead] > HOPELESS * min(best_s.values())

    @staticmethod
    def _found(n_bytes: int, best_s: Mapping[int, float], default: int) -> Lookahead:
        ahead = min(best_s, key=lambda one: best_s[one])
        if best_s[default] < CLEARLY * best_s[ahead]:
            ahead = default
        return Lookahead(ahead, n_bytes / best_s[ahead] / 1e9, n_bytes / best_s[default] / 1e9)


class _Walk:
    """Products of some matrices with one column each."""

    def __init__(self, sample: Sequence[Tensor], threads: int) -> None:
        self.n_bytes = sum(tensor.size_bytes for tensor in sample)
        self._step = Memory(128)
        self._tokens = Memory(64)
        self._scratch = Memory(MATMUL_SCRATCH_BYTES * threads)
        words = self._step.array(np.int64, (16,))
        words[STEP.tokens // 8] = self._tokens.address
        words[STEP.n_tokens // 8] = 1
        self._plan = Plan(
            self._step.address, 1, (self._scratch.address, MATMUL_SCRATCH_BYTES), threads
        )
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
        self._table = self._plan.table(compile_kernels(self._plan.kernels()))

    def seconds(self, crew: Crew, threads: int, ahead: int) -> float:
        """Walk once with a choice and return how long it took."""
        self._plan.look_ahead(lambda quant: ahead)
        started_s = time.perf_counter()
        crew.run_to_end(self._table, threads)
        return time.perf_counter() - started_s
