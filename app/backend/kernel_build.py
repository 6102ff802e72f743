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

    It pauses on battery, and while memory is short.

    Args:
        on_complete: called when the next start can use what was built.
        builder: how to build; None for the engine's way.
    """

    def __init__(
        self,
        engine_thread: EngineThread,
        on_complete: Callable[[], object],
        builder: Builder | None = None,
    ) -> None:
        self._engine_thread = engine_thread
        self._on_complete = on_complete
        self._builder = builder or Builder()
        self._n_quiet = 0
        self._build: IdleBuild | None = None
        self._is_over = False

    def poll(self) -> None:
        """Let one more kernel be compiled if the engine is idle. Call it once in ``PERIOD_S``."""
        if self._is_over:
            return
        facts = self._engine_thread.state.figures.facts
        if facts is None or self._engine_thread.status.activity is not Activity.READY:
            self._n_quiet = 0
            return
        self._n_quiet += 1
        if self._n_quiet < QUIET_PERIODS:
            return
        if not self._builder.is_needed():
            self._is_over = True
        elif not self._builder.may_build(facts, self._build is not None):
            self._pause()
        elif self._build is None:
            self._build = self._builder.start()
            self._is_over = self._build is None
        elif not self._build.step():
            self._is_over = True
            if self._build.is_complete:
                self._on_complete()

    def _pause(self) -> None:
        """End the process; another one resumes when the engine was idle for as long again."""
        self.close()
        self._build = None
        self._n_quiet = 0

    def close(self) -> None:
        """End the process after the kernel that it compiles; the next one resumes."""
        if self._build is not None:
            self._build.close()


class Builder:
    """Building by the engine, in a process of its own."""

    def is_needed(self) -> bool:
        """Return whether the next start can be better."""
        from engine import idle_build  # imports LLVM, which the first frame does not need

        return idle_build.is_needed()

    def may_build(self, facts: ModelFacts, is_running: bool) -> bool:
        """Return whether the battery and the memory of the open model stay as they are.

        Args:
            is_running: whether the process already has its memory.
        """
        from engine import idle_build
        from engine.machine import host

        needed_bytes = 0
        if not is_running:
            needed_bytes += idle_build.BUILD_BYTES
        if facts.weights_mode == "mmap":
            needed_bytes += facts.weights_bytes
        return not is_on_battery() and host.available_memory_bytes() >= needed_bytes

    def start(self) -> IdleBuild | None:
        """Start the process; None if that fails."""
        from engine import idle_build

        with suppress(OSError):
            return idle_build.IdleBuild()
        return None
