"""State of the machine during a measurement: swapping, battery, load of other programs.

A figure taken then says little about the machine. Readings that a system does not give are None,
and spoil nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from app.machine.sensors.cached_reading import or_none
from app.machine.sensors.processor import CoreLoads
from app.text.record import record

SWAPPED_BYTES = 8 << 20
"""Moved between memory and disk; less than that happens by the way."""
QUIET_CORES = 0.3
"""Cores' worth of time that other programs may take of a machine that is quiet."""
A_CORE = 0.6
"""Cores' worth of time that other programs took: one of them had a core most of the time."""


@record
class Conditions:
    """State of the machine over a span of time."""

    on_battery: bool = False
    """At its begin or its end."""
    swapped_bytes: int | None = None
    """Moved between memory and swap."""
    others_cores: float | None = None
    """Cores' worth of time that other programs, or the host of a virtual machine, took."""

    @property
    def is_swapping(self) -> bool:
        """Whether memory was short."""
        return self.swapped_bytes is not None and self.swapped_bytes >= SWAPPED_BYTES

    @property
    def is_quiet(self) -> bool:
        """Whether other programs left the machine alone, as far as can be told: figures then say
        what it can do."""
        return self.others_cores is None or self.others_cores <= QUIET_CORES

    @property
    def is_crowded(self) -> bool:
        """Whether another program took a core."""
        return self.others_cores is not None and self.others_cores >= A_CORE

    @property
    def crowding_cores(self) -> float | None:
        """Cores' worth of time that other programs took, if it was enough to matter."""
        if self.is_crowded:
            return self.others_cores
        return None

    def joined(self, other: Conditions) -> Conditions:
        """Return those of both spans: what spoils one spoils what was found in the two."""
        swapped = [
            found for found in (self.swapped_bytes, other.swapped_bytes) if found is not None
        ]
        others = [found for found in (self.others_cores, other.others_cores) if found is not None]
        on_battery = self.on_battery or other.on_battery
        return Conditions(on_battery, max(swapped, default=None), max(others, default=None))

    def remarks(self) -> tuple[str, ...]:
        """Remarks to show next to figures measured in this span."""
        found = []
        if self.is_swapping:
            found.append(
                "The machine was swapping meanwhile: these figures are not remembered. "
                "Close programs first."
            )
        if self.on_battery:
            found.append("Measured on battery: this holds for running on battery only.")
        if self.is_crowded:
            found.append(
                f"Other programs took {self.others_cores:.1f} cores meanwhile: "
                "measure again without them."
            )
        return tuple(found)


class ConditionsWatch:
    """Watches one span of time after the other.

    ``source``: psutil, what replaces it, or None to watch nothing.
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
        self._found: Conditions | None = None

    def begin(self) -> None:
        """The span begins now."""
        self._found = None
        self._began_s = self._clock()
        self._swapped, self._on_battery = self._read_swapped(), self.is_on_battery()
        or_none(lambda: self._loads.since_before(0.0))

    def end(self) -> Conditions:
        """The span is over; asked again, the answer is the same until another ``begin``."""
        if self._found is None:
            loads = or_none(lambda: self._loads.since_before(self._clock() - self._began_s))
            swapped = self._read_swapped()
            if swapped is not None and self._swapped is not None:
                moved = swapped - self._swapped
            else:
                moved = None
            if loads is not None:
                others_cores = loads.others_cores
            else:
                others_cores = None
            self._found = Conditions(self._on_battery or self.is_on_battery(), moved, others_cores)
        return self._found

    def is_on_battery(self) -> bool:
        """Whether the machine runs on battery now, as far as can be told."""
        battery = or_none(lambda: self._source.sensors_battery())
        return battery is not None and battery.power_plugged is False

    def _read_swapped(self) -> int | None:
        swap = or_none(lambda: self._source.swap_memory())
        if swap is not None:
            return int(swap.sin + swap.sout)
        return None


def watch_machine() -> ConditionsWatch:
    """Watch this machine."""
    import psutil  # not with the module: the first frame would wait for it

    return ConditionsWatch(psutil)


def look_at_load(look_s: float) -> Conditions:
    """Watch for ``look_s`` seconds what other programs take."""
    watch = watch_machine()
    watch.begin()
    time.sleep(look_s)
    return watch.end()
