"""Time of runs by phase of the plan, and the memory bandwidth of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import Cancelled
from engine.kernels.records import MATMUL, PROBE
from engine.machine.memory import Memory
from engine.plan.compilation import compile_kernels

if TYPE_CHECKING:
    from engine.plan.crew import Crew
    from engine.plan.operation import Operation

PROBE_BYTES = 256 << 20
"""Bytes that the probe reads; far more than any cache."""
_FILL_STEP_BYTES = 16 << 20
SAMPLING = "sampling"
CALLER = "caller"
"""Phases of a reply outside its runs: checking logits and choosing a token, and the consumer of
tokens."""


OTHER_RUNS = "other runs"
"""Table without rows, for the time of plans that have no table, such as those of guesses."""


@dataclass(frozen=True)
class PhaseTime:
    """Time and memory of one phase.

    Attributes:
        seconds: Time of the first thread, including waits at barriers.
        weight_bytes: Weights that all threads read in that time.
        share: Share of the time of all phases.
        n_walks: how often the phase's plan ran.
    """

    phase: str
    seconds: float
    weight_bytes: int
    share: float
    n_runs: int = 0

    @property
    def gbps(self) -> float:
        """Weights read, in gigabytes per second."""
        if self.seconds > 0:
            return self.weight_bytes / self.seconds / 1e9
        return 0.0


class ProfileTable:
    """Cycle counts of one plan's rows, summed over walks.

    Args:
        operations: the plan's rows.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._memory = Memory(8 * max(1, len(operations)))
        self.address = self._memory.address if operations else 0
        self._cycles = self._memory.array(np.int64, (len(operations),))
        self._names = list(dict.fromkeys(operation.phase for operation in operations))
        self._phase_of = np.array(
            [self._names.index(operation.phase) for operation in operations], np.intp
        )
        self._bytes_per_walk = [0] * len(self._names)
        for operation, number in zip(operations, self._phase_of, strict=True):
            if operation.record is MATMUL:
                self._bytes_per_walk[number] += int(operation.describe()["bytes"])
        self.n_runs = 0
        self.seconds = 0.0

    def reset(self) -> None:
        """Begin again from zero."""
        self._cycles[:] = 0
        self.n_runs = 0
        self.seconds = 0.0

    def phases(self) -> list[PhaseTime]:
        """Return the time by phase, in the order of the plan; the wall clock gives the length of a
        cycle."""
        by_phase = np.bincount(self._phase_of, self._cycles, len(self._names))
        total = max(1.0, float(by_phase.sum()))
        return [
            PhaseTime(
                name,
                self.seconds * float(cycles) / total,
                self.n_runs * n,
                float(cycles) / total,
                self.n_runs,
            )
            for name, cycles, n in zip(self._names, by_phase, self._bytes_per_walk, strict=True)
        ]


class Profile:
    """Time of a session: the rows of its plans, and in a reply the time between walks.

    Args:
        plans: operations by the plan's name, ``"decode"`` among them.

    Attributes:
        tables: by the plan's name.
    """

    def __init__(self, plans: Mapping[str, Sequence[Operation]]) -> None:
        self.tables = {name: ProfileTable(operations) for name, operations in plans.items()}
        self.tables[OTHER_RUNS] = ProfileTable(())
        self._begin()

    def reset(self) -> None:
        """Begin again from zero."""
        for table in self.tables.values():
            table.reset()
        self._begin()

    def _begin(self) -> None:
        self._sampling_s = self._caller_s = 0.0
        self._n_tokens = 0
        self._returned_s: float | None = None
        self._left_s: float | None = None
        self._walked_s = 0.0

    def leave(self) -> None:
        """Record that a token goes to the caller; all that was not a walk since the caller came
        back was choosing it."""
        self._left_s = time.perf_counter()
        if self._returned_s is not None:
            between_s = self._left_s - self._returned_s
            self._sampling_s += max(0.0, between_s - (self._all_walks_s() - self._walked_s))

    def enter(self) -> None:
        """Record that the caller asks for the next token."""
        self._returned_s = time.perf_counter()
        if self._left_s is not None:
            self._caller_s += self._returned_s - self._left_s
            self._n_tokens += 1
        self._walked_s = self._all_walks_s()

    def _all_walks_s(self) -> float:
        return sum(table.seconds for table in self.tables.values())

    def phases(self) -> dict[str, list[PhaseTime]]:
        """Return the phases of every plan that ran; those of a reply end with ``SAMPLING`` and
        ``CALLER``."""
        phases_by_plan = {
            name: table.phases()
            for name, table in self.tables.items()
            if table.n_runs and name != OTHER_RUNS
        }
        if "decode" in phases_by_plan and self._sampling_s + self._caller_s > 0:
            # Tokens of walks with guesses are in no table: count the others' part only.
            n_runs = self.tables["decode"].n_runs
            part = min(1.0, n_runs / max(1, self._n_tokens))
            extra = ((SAMPLING, part * self._sampling_s), (CALLER, part * self._caller_s))
            phases = [
                *phases_by_plan["decode"],
                *(PhaseTime(name, seconds, 0, 0.0, n_runs) for name, seconds in extra),
            ]
            total_s = sum(phase.seconds for phase in phases)
            phases_by_plan["decode"] = [
                replace(phase, share=phase.seconds / total_s) for phase in phases
            ]
        return phases_by_plan


def read_bandwidth_gbps(
    crew: Crew, n_threads: int, rounds: int = 5, is_unwanted: Callable[[], bool] = lambda: False
) -> float:
    """Measure the read bandwidth of memory with ``n_threads`` threads: the best of several passes.

    The passes read one place after the other, or four places at once; which is faster depends on
    the processor.

    Args:
        rounds: Passes after the first one, which only maps the pages.
        is_unwanted: Called every few milliseconds; returns whether something more important has
            come up.

    Raises:
        Cancelled: ``is_unwanted`` returned True, or the crew was cancelled.
        MemoryPlanError: The system does not grant the memory.
    """
    crew.clear_cancel()
    data = Memory(PROBE_BYTES)
    out = Memory(128 * n_threads)
    for start in range(0, PROBE_BYTES, _FILL_STEP_BYTES):
        _give_way(is_unwanted)
        data.bytes[start : start + _FILL_STEP_BYTES] = 1
    record = Memory(8 * len(PROBE))
    table = Memory(24)
    words = record.array(np.int64, (len(PROBE),))
    for name, value in (("address", data.address), ("n_bytes", PROBE_BYTES), ("out", out.address)):
        words[getattr(PROBE, name) // 8] = value
    kernel = compile_kernels(["probe"])["probe"]
    table.array(np.int64, (3,))[:] = kernel, record.address, 1
    seconds = []
    for i in range(rounds + 1):
        _give_way(is_unwanted)
        if i & 1:
            words[PROBE.n_streams // 8] = 4
        else:
            words[PROBE.n_streams // 8] = 1
        before_s = time.perf_counter()
        crew.run_to_end((table.address, 1), n_threads)
        seconds.append(time.perf_counter() - before_s)
    return PROBE_BYTES / min(seconds[1:]) / 1e9


def _give_way(is_unwanted: Callable[[], bool]) -> None:
    if is_unwanted():
        raise Cancelled("the measurement gave way")
