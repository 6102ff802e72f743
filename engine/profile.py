"""Where a walk's time goes, by phase of the plan, and what the machine could do at best."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.compilation import compile_kernels
from engine.memory import Memory
from engine.records import PROBE

if TYPE_CHECKING:
    from engine.crew import Crew
    from engine.plan import Operation

PROBE_BYTES = 256 << 20
"""Far more than any cache holds."""


@dataclass(frozen=True)
class PhaseTime:
    """One phase's part of a profile.

    Attributes:
        seconds: of the first thread, waiting at barriers included.
        weight_bytes: read by all threads in that time.
        share: of all phases' time.
    """

    phase: str
    seconds: float
    weight_bytes: int
    share: float

    @property
    def gbps(self) -> float:
        """Weights read, in gigabytes a second."""
        return self.weight_bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0


class ProfileTable:
    """Cycle counts of one plan's rows, summed over walks.

    Args:
        operations: the plan's rows.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = list(operations)
        self._memory = Memory(8 * len(self._operations))
        self.address = self._memory.address
        self._cycles = self._memory.array(np.int64, (len(self._operations),))
        self.n_walks = 0
        self.seconds = 0.0

    def phases(self) -> list[PhaseTime]:
        """Time by phase, in the order of the plan; the wall clock gives the length of a cycle."""
        total = max(1, int(self._cycles.sum()))
        found: dict[str, list[int]] = {}
        for operation, cycles in zip(self._operations, self._cycles, strict=True):
            entry = found.setdefault(operation.phase, [0, 0])
            entry[0] += int(cycles)
            if operation.kernel.startswith("mat"):
                entry[1] += self.n_walks * int(operation.describe()["bytes"])
        return [
            PhaseTime(phase, self.seconds * cycles / total, weight_bytes, cycles / total)
            for phase, (cycles, weight_bytes) in found.items()
        ]


def read_bandwidth_gbps(crew: Crew, n_threads: int, rounds: int = 5) -> float:
    """Read-only memory bandwidth of so many threads: the best of a few passes over memory that no cache holds.

    Args:
        rounds: passes after the first, which only makes the pages exist.
    """
    data, out = Memory(PROBE_BYTES), Memory(128 * n_threads)
    data.bytes[:] = 1
    words = [0] * 3
    for name, value in (("address", data.address), ("n_bytes", PROBE_BYTES), ("out", out.address)):
        words[getattr(PROBE, name) // 8] = value
    record, table = Memory(24), Memory(24)
    record.bytes[:24] = np.frombuffer(struct.pack("<3q", *words), np.uint8)
    kernel = compile_kernels(["probe"])["probe"]
    table.array(np.int64, (3,))[:] = kernel, record.address, 1
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        crew.walk((table.address, 1), n_threads)
        seconds.append(time.perf_counter() - start)
    return PROBE_BYTES / min(seconds[1:]) / 1e9
