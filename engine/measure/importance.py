"""How large each matrix's inputs are, column by column, while a text is read: what its quantised
weights must keep.

A weight's error is felt times what the weight is multiplied with, so the mean square of an input
column says how much the errors of that column count. Matrices, sums and chunks are those of
llama.cpp's ``llama-imatrix``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.config import Experts
from engine.gguf.imatrix import Imatrix
from engine.kernels.records import EXPERT, EXPERT_BYTES

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.plan.buffers import Activations
    from engine.plan.plan import Operation
    from engine.session import Session

Sums = np.ndarray[Any, np.dtype[np.float64]]


def collect(session: Session, chunks: Sequence[Sequence[int]]) -> Iterator[Imatrix]:
    """Read chunk by chunk, each into an empty cache, and yield what is known after each.

    Args:
        session: with room for a chunk; its tokens are dropped.
        chunks: as ``perplexity.chunks_of`` makes them.

    Raises:
        BrokenModelError: the model computed NaN or infinity.
        Cancelled: ``cancel`` was called on the session.
        EngineError: the same errors as ``Session.watch``.
    """
    inputs = _Inputs(session.config)
    for n, chunk in enumerate(chunks, 1):
        session.truncate(0)
        session.watch(chunk, inputs.look)
        if not all(np.isfinite(one).all() for one in inputs.squares.values()):
            raise session.broken()
        yield inputs.imatrix(n, len(chunk))


class _Inputs:
    """Sums of the squares of what matrices are multiplied with.

    Attributes:
        squares: by the tensor's name, (n_experts or 1, n_columns).
    """

    def __init__(self, config: ModelConfig) -> None:
        self._layers = config.layers
        self.squares: dict[str, Sums] = {}
        self._counts: dict[str, Sums] = {}
        self._read: dict[str, Activations] = {}
        """The vector that was multiplied with a matrix first."""
        self._of_heads: set[str] = set()
        """Matrices whose parts read vectors of their own."""
        self._before: tuple[str, Activations] | None = None

    def look(self, n_tokens: int, product: Operation) -> None:
        """Add the inputs of a product that is about to run."""
        assert product.weight is not None
        assert product.reads is not None
        name = product.weight.name
        x = product.reads
        before = self._before
        self._before = (name, x)
        if before == self._before or not (name.startswith("blk.") and name.endswith(".weight")):
            return  # a product in parts is one product
        if self._read.setdefault(name, x) is not x:
            self._of_heads.add(name)
            return
        feed_forward = self._layers[int(name.split(".")[1])].feed_forward
        if product.each and isinstance(feed_forward, Experts):
            n_parts = feed_forward.n_experts
        else:
            n_parts = 1
        squares = self.squares.setdefault(name, np.zeros((n_parts, x.n)))
        counts = self._counts.setdefault(name, np.zeros(n_parts))
        for part, first, n in (
            _columns_in_use(product.each["table"]) if product.each else [(0, 0, n_tokens)]
        ):
            rows = x.array()[first : first + n]
            squares[part] += np.einsum("ij,ij->j", rows, rows)
            counts[part] += n

    def imatrix(self, n_chunks: int, chunk_size: int) -> Imatrix:
        """All sums by now, as a file holds them."""
        kept = {name: one for name, one in self.squares.items() if name not in self._of_heads}
        return Imatrix(
            {name: one.astype(np.float32) for name, one in kept.items()},
            {name: self._counts[name].astype(np.float32) for name in kept},
            n_chunks,
            chunk_size,
        )


def _columns_in_use(table: int) -> Iterator[tuple[int, int, int]]:
    """Yield (expert, its first column, its number of columns) of ``records.GROUP``'s table."""
    n = ctypes.c_int64.from_address(table).value
    words = (ctypes.c_int64 * (n * EXPERT_BYTES // 8)).from_address(table + EXPERT_BYTES)
    for entry in np.ctypeslib.as_array(words).reshape(n, -1).tolist():
        yield entry[EXPERT.number // 8], entry[EXPERT.first // 8], entry[EXPERT.n_tokens // 8]
