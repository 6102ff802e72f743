"""Importance of weights: how large the inputs of each matrix are while a text is read.

An error of a weight counts as much as the weight's input. So the mean square of an input column
says how much errors in that column of the matrix matter. Matrices, sums and chunks are those of
llama.cpp's ``llama-imatrix``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.config import Experts
from engine.gguf.imatrix import Imatrix
from engine.kernels.records import EXPERT, EXPERT_BYTES

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.plan.buffers import Activations
    from engine.plan.operation import Operation
    from engine.session import Session

Sums = np.ndarray[Any, np.dtype[np.float64]]


def collect(session: Session, chunks: Sequence[Sequence[int]]) -> Iterator[Imatrix]:
    """Read chunk by chunk, each into an empty cache, and yield the importance matrix after each.

    Args:
        session: session with room for a chunk; its tokens are dropped.
        chunks: chunks from ``perplexity.chunks_of``.

    Raises:
        BrokenModelError: the model computed NaN or infinity.
        Cancelled: ``cancel`` was called on the session.
        EngineError: the same errors as ``Session.feed``.
    """
    inputs = _InputSums(session.config)
    for n_chunks, chunk in enumerate(chunks, 1):
        session.truncate(0)
        feed_inspected(session, chunk, inputs.add)
        if not all(np.isfinite(sums).all() for sums in inputs.squares.values()):
            raise session.forward.broken_model()
        yield inputs.imatrix(n_chunks, len(chunk))


def feed_inspected(
    session: Session, ids: Sequence[int], inspect: Callable[[int, Operation], None]
) -> None:
    """Append tokens to a session and show the input of every matrix product of its layers.

    No logits are computed.

    Args:
        ids: token ids, at least one, each 0 to ``vocab_size`` - 1.
        inspect: called with the number of tokens and a product that is about to run.

    Raises:
        EngineError: the same errors as ``Session.feed``.
    """
    session.forward.start()
    checked = session.check_ids(ids)
    n_threads = session.model.prefill_threads
    n_done = 0
    while n_done < len(checked):
        size = session.pipeline.block_size_at(session.length)
        block = checked[n_done : n_done + size]
        _append_inspected(session, block, n_threads, partial(inspect, len(block)))
        n_done += len(block)


def _append_inspected(
    session: Session, block: list[int], n_threads: int, inspect: Callable[[Operation], None]
) -> None:
    session.append_block(
        block, lambda pos: session.pipeline.inspect_block(block, pos, n_threads, inspect)
    )


class _InputSums:
    """Sums of the squared inputs of all matrices.

    Attributes:
        squares: sums by the tensor's name, (n_experts or 1, n_columns).
    """

    def __init__(self, config: ModelConfig) -> None:
        self._layers = config.layers
        self.squares: dict[str, Sums] = {}
        self._counts: dict[str, Sums] = {}
        self._inputs: dict[str, Activations] = {}
        """First input of each matrix."""
        self._split_names: set[str] = set()
        """Names of matrices whose parts have different inputs."""
        self._previous: tuple[str, Activations] | None = None

    def add(self, n_tokens: int, product: Operation) -> None:
        """Add the inputs of a product that is about to run."""
        assert product.weight is not None
        assert product.reads is not None
        name = product.weight.name
        x = product.reads
        is_continued = self._previous == (name, x)  # a product in several operations
        self._previous = (name, x)
        if is_continued or not (name.startswith("blk.") and name.endswith(".weight")):
            return
        if self._inputs.setdefault(name, x) is not x:
            self._split_names.add(name)
            return

        n_experts = 1
        spans: Sequence[tuple[int, int, int]] = [(0, 0, n_tokens)]
        if product.each:
            spans = list(_expert_spans(product.each["table"]))
            feed_forward = self._layers[int(name.split(".")[1])].feed_forward
            if isinstance(feed_forward, Experts):
                n_experts = feed_forward.n_experts
        squares = self.squares.setdefault(name, np.zeros((n_experts, x.n)))
        counts = self._counts.setdefault(name, np.zeros(n_experts))
        for expert, first, n in spans:
            rows = x.array()[first : first + n]
            squares[expert] += np.einsum("ij,ij->j", rows, rows)
            counts[expert] += n

    def imatrix(self, n_chunks: int, chunk_size: int) -> Imatrix:
        """Return all sums so far, as a file stores them."""
        names = [name for name in self.squares if name not in self._split_names]
        return Imatrix(
            {name: self.squares[name].astype(np.float32) for name in names},
            {name: self._counts[name].astype(np.float32) for name in names},
            n_chunks,
            chunk_size,
        )


def _expert_spans(table: int) -> Iterator[tuple[int, int, int]]:
    """Yield (expert, first token, number of tokens) from the table of ``records.GROUP``."""
    n = ctypes.c_int64.from_address(table).value
    words = (ctypes.c_int64 * (n * EXPERT_BYTES // 8)).from_address(table + EXPERT_BYTES)
    for entry in np.ctypeslib.as_array(words).reshape(n, -1).tolist():
        yield entry[EXPERT.number // 8], entry[EXPERT.first // 8], entry[EXPERT.n_tokens // 8]
