"""Rows that read matrices from disk while others are computed, for a dense model that is larger
than memory.

Left alone, the system keeps the pages used last: of a file that is read in order for every token,
none of those that the next token begins with. So a fixed part of the file is dropped as soon as it
was used, and the rest stays.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.kernels import records

if TYPE_CHECKING:
    from collections.abc import Collection

    from engine.plan.plan import Operation, Plan

ASKED_AHEAD_BYTES = 64 << 20
"""Limit on what is asked for of one matrix."""


@dataclass
class _MatrixUse:
    """The rows that multiply with one matrix, or with parts of it, and what they read."""

    first_row: int
    last_row: int
    address: int
    end: int


def stream(plan: Plan, names: Collection[str]) -> None:
    """Ask for each of these matrices when the one before it is begun, and drop it once all threads
    have left it."""
    uses = _uses(plan.operations, names)
    rows: dict[int, list[dict[str, int]]] = defaultdict(list)
    for use in uses:
        rows[_end_of_use(plan.operations, use)].append(
            {"last": use.address, "last_bytes": use.end - use.address}
        )
    begin = 1  # after the reset of claims
    for use in uses:
        rows[begin].append(
            {"next": use.address, "next_bytes": min(use.end - use.address, ASKED_AHEAD_BYTES)}
        )
        begin = use.first_row
    for at in sorted(rows, reverse=True):
        plan.insert(at, "stream", records.STREAM, rows[at])


def _uses(operations: list[Operation], names: Collection[str]) -> list[_MatrixUse]:
    found: dict[str, _MatrixUse] = {}
    for i, one in enumerate(operations):
        if one.record is records.MATMUL and one.weight is not None and one.weight.name in names:
            address = one.arguments["weights"]
            use = found.setdefault(one.weight.name, _MatrixUse(i, i, address, address))
            use.last_row = i
            use.address = min(use.address, address)
            use.end = max(use.end, address + one.n_rows * one.weight.row_bytes)
    return list(found.values())


def _end_of_use(operations: list[Operation], use: _MatrixUse) -> int:
    """The first row after a barrier, or the end."""
    following = (i + 1 for i in range(use.last_row, len(operations)) if operations[i].barrier)
    return next(following, len(operations))
