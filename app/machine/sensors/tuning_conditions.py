"""Conditions of a measurement: swapping, battery and load of other programs.

They show whether a figure can be trusted. Unavailable readings are None and spoil nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from app.machine.sensors.processor import CoreLoads, Loads
from app.text.record import record

SWAPPED_BYTES = 8 << 20
"""Bytes swapped in or out from which memory counts as short."""
QUIET_CORES = 0.3
"""Cores that other programs may use on a quiet machine."""


@record
class Conditions:
    """State of the machine over a time span."""

    on_battery: bool = False
    """Whether the machine was on battery at the start or end."""
    swapped_bytes: int | None = None
    """Bytes swapped in or out."""
    others_cores: float | None = None
    """Cores used by other programs, or by the host of a virtual machine."""

    @property
    def is_swapping(self) -> bool:
        """Whether memory was short."""
        return self.swapped_bytes is not None and self.swapped_bytes >= SWAPPED_BYTES

    @property
    def is_quiet(self) -> bool:
        """Whether other programs were quiet, as far as is known."""
        return self.others_cores is None or self.others_cores <= QUIET_CORES

    @property
    def disturbing_cores(self) -> float | None:
        """Cores used by other programs, if enough to matter; else None."""
        if self.is_quiet:
            return None
        return self.others_cores

    def joined(self, second: Conditions) -> Conditions:
        """Return the conditions of both spans together."""
        swapped = [
            value for value in (self.swapped_bytes, second.swapped_bytes) if value is not None
        ]
        others_cores = [
            value for value in (self.others_cores, second.others_cores) if value is not None
        ]
        on_battery = self.on_battery or second.on_battery
        return Conditions(on_battery, max(swapped, default=None), max(others_cores, default=None))

    def remarks(self) -> tuple[str, ...]:
        """Return remarks to show next to figures of this span."""
        remarks = []
        if self.is_swapping:
            remarks.append(
                "The machine was swapping, so these figures are not saved. Close programs first."
            )
        if self.on_battery:
            remarks.append("Measured on battery, so this applies on battery only.")
        if not self.is_quiet:
            remarks.append(
                f"Other programs used {self.others_cores:.1f} cores: measure again without them."
            )
        return tuple(remarks)


class ConditionsWatch:
    """Watches time spans.

    Args:
        source: psutil or a substitute; None to watch nothing.
    """

    def __init__(
        self,
        source: Any,
        own_cpu: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._clock = clock
        self._loads = CoreLoads(source, own_cpu)
        self._began_s = 0.0
        self._swapped: int | None = None
        self._on_battery = False
        self._result: Conditions | None = None

    def begin(self) -> None:
        """Start a time span."""
        self._result = None
        self._began_s = self._clock()
        self._swapped = self._read_swapped()
        self._on_battery = self.is_on_battery()
        self._read_loads(0.0)

    def end(self) -> Conditions:
        """End the time span and return its conditions.

        Further calls return the same until ``begin``.
        """
        if self._result is None:
            loads = self._read_loads(self._clock() - self._began_s)
            swapped = self._read_swapped()
            if swapped is not None and self._swapped is not None:
                moved = swapped - self._swapped
            else:
                moved = None
            if loads is not None:
                others_cores = loads.others_cores
            else:
                others_cores = None
            self._result = Conditions(self._on_battery or self.is_on_battery(), moved, others_cores)
        return self._result

    def is_on_battery(self) -> bool:
        """Whether the machine runs on battery, as far as is known."""
        with suppress(Exception):
            battery = self._source.sensors_battery()
            return battery is not None and battery.power_plugged is False
        return False

    def _read_loads(self, span_s: float) -> Loads | None:
        """Return the load of the cores over the last ``span_s`` seconds; None if it is unknown."""
        with suppress(Exception):
            return self._loads.since_before(span_s)
        return None

    def _read_swapped(self) -> int | None:
        with suppress(Exception):
            swap = self._source.swap_memory()
            return int(swap.sin + swap.sout)
        return None


def watch_machine() -> ConditionsWatch:
    """Return a watch of this machine."""
    import psutil  # a module import would delay the first frame

    return ConditionsWatch(psutil)


def look_at_load(look_s: float) -> Conditions:
    """Return the conditions of the next ``look_s`` seconds."""
    watch = watch_machine()
    watch.begin()
    time.sleep(look_s)
    return watch.end()
