"""Clock of a core while it computes, from the time of a chain of operations of one cycle each.

The system often reports the nominal clock, or nothing in a virtual machine.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING

import numpy as np

from engine.kernels.records import PROBE
from engine.machine.memory import Memory
from engine.plan.compilation import compile_kernels

if TYPE_CHECKING:
    from engine.plan.crew import Crew

CYCLES_A_STEP = 6
STEPS = 300_000
ROUNDS = 60


def clock_ghz(crew: Crew) -> float | None:
    """Measure the clock of one core in GHz; None if a step may take another number of cycles.

    The best of many half milliseconds counts, so other programs hardly matter.

    Raises:
        Cancelled: The crew was cancelled meanwhile.
    """
    from engine.machine import level

    if not level.HAS_X86:
        return None
    crew.clear_cancel()
    out = Memory(64)
    record = Memory(24)
    table = Memory(24)
    words = [0] * 3
    for name, value in (
        ("address", out.address),
        ("n_bytes", STEPS),
        ("out", 0x9E3779B97F4A7C15 >> 1),
    ):
        words[getattr(PROBE, name) // 8] = value
    record.bytes[:24] = np.frombuffer(struct.pack("<3q", *words), np.uint8)
    table.array(np.int64, (3,))[:] = (
        compile_kernels(["count steps"])["count steps"],
        record.address,
        1,
    )
    best_s = float("inf")
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        crew.run_to_end((table.address, 1), 1)
        best_s = min(best_s, time.perf_counter() - started_s)
    return STEPS * CYCLES_A_STEP / best_s / 1e9
