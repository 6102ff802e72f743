"""Measurement of the best software prefetch (``engine.plan.lookahead``) for each weight type, on a
model's own weights.

Every round runs the same products once with each choice, so that disturbances affect all choices
alike; the best time of each counts. A choice other than the default must be clearly faster. Between
two readings of a matrix, as many weights are read as a token reads, or twice the size of the last
cache: 64 MB that are read repeatedly stay in a server's cache.
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
"""Approximate bytes of one weight type in a run, unless twice the last cache is more."""
MIN_SAMPLE_BYTES = 32 << 20
"""A type with fewer bytes in a model larger than the cache is not measured, since its choice hardly
matters."""
ROUNDS = 6
CACHED_ROUNDS = 30
CLEARLY = 1.02
HOPELESS = 1.3
"""A choice this many times slower than the best after two rounds is not measured again."""


def try_lookahead(
    model: Model,
    session: Session,
    is_unwanted: Callable[[], bool] = lambda: False,
    again: bool = False,
) -> dict[str, Lookahead]:
    """Measure the weight types of a model that were not measured yet on this processor, and use and
    store the results.

    One thread and the threads in use are measured separately. It takes about two seconds per type.

    Args:
        session: session of the model; its tokens do not change.
        is_unwanted: called every few milliseconds; returns True to end the measurement.
        again: measure all types, including those measured before.

    Returns:
        New results by ``WeightAccess.key`` of the weight type. Types with few bytes in the model
        are left out.

    Raises:
        Cancelled: ``is_unwanted`` returned True, or the session was cancelled. Results of finished
            thread counts stay.
        ModelChangedError: the model file was changed on disk.
    """
    model.refuse_changed_file()
    model.crew.clear_cancel()
    results: dict[str, Lookahead] = {}
    try:
        for threads in sorted({model.threads, 1}, reverse=True):
            access = session.pipeline.weight_access_for(threads)
            samples = _samples(_matrices(session), 0 if access.is_cached else MIN_SAMPLE_BYTES)
            keys = [access.key(quant) for quant in samples]
            if not again and all(key in lookahead.measured_choices() for key in keys):
                continue
            trial = _LookaheadTrial(model.crew, samples, threads, is_unwanted)
            rounds = CACHED_ROUNDS if access.is_cached else ROUNDS
            for quant, choice in trial.run(rounds, default_choice()).items():
                results[access.key(quant)] = choice
                lookahead.save_choice(access.key(quant), choice)
    finally:
        session.pipeline.look_ahead()
    return results


def _matrices(session: Session) -> list[Tensor]:
    """Return the matrices that a decode step reads, without those of adapters."""
    matrices = session.pipeline.plans["decode"].matrices()
    return [tensor for tensor in matrices if not tensor.name.endswith(FACTORS)]


def _samples(matrices: Sequence[Tensor], min_bytes: int) -> dict[str, list[Tensor]]:
    """Return matrices of each type: all of them, or as many as no cache holds until the next
    round."""
    by_type: dict[str, list[Tensor]] = {}
    for tensor in sorted(matrices, key=lambda tensor: -tensor.size_bytes):
        by_type.setdefault(tensor.quant, []).append(tensor)
    share = 2 * last_cache_bytes() / max(1, sum(tensor.size_bytes for tensor in matrices))
    samples = {}
    for quant, tensors in by_type.items():
        max_bytes = max(SAMPLE_BYTES, share * sum(tensor.size_bytes for tensor in tensors))
        offsets = accumulate((tensor.size_bytes for tensor in tensors), initial=0)
        samples[quant] = [
            tensor for tensor, n_bytes in zip(tensors, offsets, strict=False) if n_bytes < max_bytes
        ]
    return {
        quant: tensor
        for quant, tensor in samples.items()
        if sum(tensor.size_bytes for tensor in tensor) >= min_bytes
    }


class _LookaheadTrial:
    """Runs of all types in turn, as a token reads them, so that the caches hold what they hold in
    decode."""

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
        self._runs = {quant: _ProductRun(sample, threads) for quant, sample in samples.items()}
        self._best_s = {quant: dict.fromkeys(CHOICES, float("inf")) for quant in samples}

    def run(self, rounds: int, default: int) -> dict[str, Lookahead]:
        for n in range(rounds + 1):  # the first round only loads the weights into memory
            for ahead in CHOICES:
                for quant, product_run in self._runs.items():
                    if n > 2 and self._is_hopeless(quant, ahead, default):
                        continue
                    if self._is_unwanted():
                        raise Cancelled("the measurement was stopped")
                    seconds = product_run.seconds(self._crew, self._threads, ahead)
                    if n:
                        self._best_s[quant][ahead] = min(self._best_s[quant][ahead], seconds)
        return {
            quant: self._found(product_run.n_bytes, self._best_s[quant], default)
            for quant, product_run in self._runs.items()
        }

    def _is_hopeless(self, quant: str, ahead: int, default: int) -> bool:
        best_s = self._best_s[quant]
        return ahead != default and best_s[ahead] > HOPELESS * min(best_s.values())

    @staticmethod
    def _found(n_bytes: int, best_s: Mapping[int, float], default: int) -> Lookahead:
        ahead = min(best_s, key=lambda tensor: best_s[tensor])
        if best_s[default] < CLEARLY * best_s[ahead]:
            ahead = default
        return Lookahead(ahead, n_bytes / best_s[ahead] / 1e9, n_bytes / best_s[default] / 1e9)


class _ProductRun:
    """Products of some matrices with one vector each."""

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
        """Run the products once with a choice and return the duration."""
        self._plan.look_ahead(lambda quant: ahead)
        started_s = time.perf_counter()
        crew.run_to_end(self._table, threads)
        return time.perf_counter() - started_s
