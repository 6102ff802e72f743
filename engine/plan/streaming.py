"""Rows that read matrices from disk while others are computed, for a dense model larger than
memory.

The system keeps the pages used last. Of a file that is read in order for every token, these are
none that the next token begins with. So a fixed part of the file is dropped right after its use,
and the rest stays.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.kernels import records

if TYPE_CHECKING:
    from collections.abc import Collection

    from engine.plan.operation import Operation
    from engine.plan.plan import Plan

PREFETCH_BYTES = 64 << 20
"""Limit on the bytes of one matrix that are requested."""


@dataclass
class _MatrixUse:
    """Rows that multiply by one matrix or parts of it, and the bytes they read."""

    first_row: int
    last_row: int
    address: int
    end: int


def stream(plan: Plan, names: Collection[str]) -> None:
    """Request each of these matrices when the previous one begins; drop it once all threads have
    left it."""
    uses = _uses(plan.operations, names)
    rows: dict[int, list[dict[str, int]]] = defaultdict(list)
    for use in uses:
        rows[_end_of_use(plan.operations, use)].append(
            {"last": use.address, "last_bytes": use.end - use.address}
        )
    start_row = 1  # after the reset of claims
    for use in uses:
        rows[start_row].append(
            {"next": use.address, "next_bytes": min(use.end - use.address, PREFETCH_BYTES)}
        )
        start_row = use.first_row
    for index in sorted(rows, reverse=True):
        plan.insert(index, "stream", records.STREAM, rows[index])


def _uses(operations: list[Operation], names: Collection[str]) -> list[_MatrixUse]:
    uses: dict[str, _MatrixUse] = {}
    for i, operation in enumerate(operations):
        if (
            operation.record is records.MATMUL
            and operation.weight is not None
            and operation.weight.name in names
        ):
            address = operation.arguments["weights"]
            use = uses.setdefault(operation.weight.name, _MatrixUse(i, i, address, address))
            use.last_row = i
            use.address = min(use.address, address)
            use.end = max(use.end, address + operation.n_rows * operation.weight.row_bytes)
    return list(uses.values())


def _end_of_use(operations: list[Operation], use: _MatrixUse) -> int:
    """Return the first row after the next barrier, or the end."""
    rows = (i + 1 for i in range(use.last_row, len(operations)) if operations[i].barrier)
    return next(rows, len(operations))
