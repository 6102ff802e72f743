"""Waiting for a quiet machine before a measurement."""

from __future__ import annotations

from app.machine.sensors.tuning_conditions import QUIET_CORES

SETTLE_S = 3.0
"""Seconds for which other programs must be quiet after they were busy."""


class QuietWatch:
    """Tells from readings whether other programs are quiet, and stay so."""

    def __init__(self) -> None:
        self.others_cores = 0.0
        """Cores that other programs use now; 0 if unknown."""
        self._busy_s = float("-inf")

    def add(self, others_cores: float | None, now_s: float) -> None:
        """Take a reading of the cores that other programs use; None if unknown."""
        self.others_cores = others_cores or 0.0
        if self.others_cores > QUIET_CORES:
            self._busy_s = now_s

    def is_quiet(self, now_s: float) -> bool:
        """Whether a measurement may begin."""
        return now_s - self._busy_s >= SETTLE_S


def busy_text(others_cores: float, n_cores: int) -> str:
    """Describe the load of other programs, such as "other programs use 1.4 of 2 cores"."""
    return f"other programs use {others_cores:.1f} of {n_cores} cores"
