"""A row of a plan, and the record of its arguments."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.kernels import records

if TYPE_CHECKING:
    from engine.plan.buffers import Activations
    from engine.weights.weights import Tensor

RECORD_BYTES = 192
"""Bytes of an argument record."""


@dataclass
class Operation:
    """Row of a plan: a kernel, its arguments, and facts for readers of the plan.

    Attributes:
        kernel: Name of the kernel.
        arguments: Words of the record, by name.
        record: Record of ``engine.kernels.records``.
        phase: Part of the model that the row belongs to.
        weight: Matrix that the row reads; None if it reads none.
        n_rows: Rows of the matrix that are read.
        barrier: Whether all threads wait for each other after the row.
        each: Words of ``records.EACH`` if the kernel runs once for each expert in use.
        n_parts: Limit on the matrices of the weight's size that a run reads: one, or one for each
            expert in use.
        reads: Vectors that a matrix product multiplies.
    """

    kernel: str
    arguments: dict[str, int]
    record: Any
    phase: str
    weight: Tensor | None = None
    n_rows: int = 0
    barrier: bool = False
    each: dict[str, int] | None = None
    n_parts: int = 1
    reads: Activations | None = None

    def record_bytes(self) -> bytes:
        """Return the argument record, in the words that the kernel reads."""
        words = [0] * (RECORD_BYTES // 8)
        for name, value in self.arguments.items():
            words[getattr(self.record, name) // 8] = value
        for name, value in (self.each or {}).items():
            words[getattr(records.EACH, name) // 8] = value
        return struct.pack(f"<{len(words)}q", *words)

    def describe(self) -> dict[str, Any]:
        """Return the row for people and scripts; bytes are those of the weights it reads."""
        description: dict[str, Any] = {
            "phase": self.phase,
            "op": self.kernel,
            "barrier": self.barrier,
        }
        if self.weight is not None:
            description |= {
                "weights": self.weight.name,
                "type": self.weight.quant,
                "shape": [self.n_rows, self.weight.n_cols],
                "bytes": self.n_parts * self.n_rows * self.weight.row_bytes,
            }
            if self.n_parts > 1:
                description["experts"] = self.n_parts
        return description


def float_bits(x: float) -> int:
    """Return the bits of a float64 as int64."""
    return int(struct.unpack("<q", struct.pack("<d", x))[0])


def address_or_zero(vector: Tensor | Activations | None) -> int:
    """Return the address of a tensor or vector; 0 if there is none."""
    if vector is None:
        return 0
    return vector.address
