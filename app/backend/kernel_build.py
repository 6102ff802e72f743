"""Machine code for this processor, built while the engine is idle, for the next start."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from app.backend.engine_thread import EngineThread
from app.backend.status import Activity
from app.machine.sensors.low_power import is_on_battery
from app.machine.sensors.records import ModelFacts

if TYPE_CHECKING:
    from engine.idle_build import IdleBuild

PERIOD_S = 1.0
"""Seconds between two looks whether the engine is idle."""
QUIET_PERIODS = 10
"""Periods without work after which the engine counts as idle."""


class KernelBuild:
    """Building in idle time. It begins if this process uses a lower level than the processor has.

    Args:
        start: starts the process that builds, given the open model; None if nothing is to be built.
    """

    def __init__(
        self,
        engine_thread: EngineThread,
        start: Callable[[ModelFacts], IdleBuild | None] | None = None,
    ) -> None:
        self._engine_thread = engine_thread
        self._start = start or start_build
        self._n_quiet = 0
        self._build: IdleBuild | None = None
        self._is_over = False

    def poll(self) -> None:
        """Let one more kernel be compiled if the engine is idle. Call it once in ``PERIOD_S``."""
        facts = self._engine_thread.state.figures.facts
        if facts is None or self._engine_thread.status.activity is not Activity.READY:
            self._n_quiet = 0
            return
        self._n_quiet += 1
        if self._is_over or self._n_quiet < QUIET_PERIODS:
            return
        if self._build is None:
            self._build = self._start(facts)
        if self._build is None or not self._build.step():
            self._is_over = True

    def close(self) -> None:
        """End the process after the kernel that it compiles; the next one resumes."""
        if self._build is not None:
            self._build.close()


def start_build(facts: ModelFacts) -> IdleBuild | None:
    """Start building; None if it is not needed, or if memory or the battery would suffer."""
    from engine import idle_build  # imports LLVM, which the first frame does not need
    from engine.machine import host

    if not idle_build.is_needed() or is_on_battery():
        return None
    needed_bytes = idle_build.BUILD_BYTES
    if facts.weights_mode == "mmap":
        needed_bytes += facts.weights_bytes
    if host.available_memory_bytes() < needed_bytes:
        return None
    with suppress(OSError):
        return idle_build.IdleBuild()
    return None
