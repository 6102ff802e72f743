"""Load, clock, temperature, governor and battery, through psutil; from sysfs only what psutil does
not know."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from app.machine.sensors.cached_reading import CachedReading, or_none
from app.machine.sensors.sample import BUSY_LOAD, Battery, Governor
from app.text.clean_text import clean_line

CLOCK_PERIOD_S = 0.9
SLOW_PERIOD_S = 2.0
"""Of what changes slowly and may be slow to read: temperature, throttling."""
RARE_PERIOD_S = 10.0
"""Of what a user changes: governor, battery."""
_EXCEEDED_BELOW = 0.98
"""A highest clock below this share of the present one is exceeded; less is how exactly clocks are
read."""
_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "acpitz")
"""Sensors of a processor, the most exact first."""
_IDLE_TIMES = ("idle", "iowait")
_COUNTED_TWICE = ("guest", "guest_nice")
"""Linux has these in user and nice already."""


class Loads(NamedTuple):
    """Load of the cores between two readings."""

    cores: tuple[float, ...]
    others_cores: float


class CoreLoads:
    """Loads from the differences of processor times."""

    def __init__(self, source: Any, own_cpu: Callable[[], float] = time.process_time) -> None:
        self._source = source
        self._own_cpu = own_cpu
        self._before: tuple[list[tuple[float, float]], float, float] | None = None
        """Busy and all seconds of each core, seconds stolen from all, own seconds."""

    def since_before(self, interval_s: float) -> Loads | None:
        """Return the loads since the last call; None at the first, and when a core came or went."""
        times_of_cores = self._source.cpu_times(percpu=True)
        cores = [_spent(times) for times in times_of_cores]
        stolen_s = sum(getattr(times, "steal", 0.0) for times in times_of_cores)
        own_s = self._own_cpu()
        before = self._before
        self._before = (cores, stolen_s, own_s)
        if before is None or len(before[0]) != len(cores) or interval_s <= 0:
            return None
        spent = [
            (busy - busy0, total - total0)
            for (busy, total), (busy0, total0) in zip(cores, before[0], strict=True)
        ]
        loads = tuple(
            min(1.0, max(0.0, busy / total)) if total > 0 else 0.0 for busy, total in spent
        )
        others_s = sum(busy for busy, _ in spent) + (stolen_s - before[1]) - (own_s - before[2])
        return Loads(loads, max(0.0, others_s / interval_s))


def _spent(times: Any) -> tuple[float, float]:
    """Return seconds busy and seconds in all."""
    parts = {name: getattr(times, name) for name in times._fields if name not in _COUNTED_TWICE}
    total = sum(parts.values())
    return total - sum(parts.get(name, 0.0) for name in (*_IDLE_TIMES, "steal")), total


class Processor:
    """Everything about the processor but its load."""

    def __init__(self, source: Any, sysfs: Path) -> None:
        self._source = source
        self._cpus = sysfs / "devices" / "system" / "cpu"
        self._clocks = CachedReading(self._read_clocks, CLOCK_PERIOD_S)
        self.temperature_c = CachedReading(self._read_temperature, SLOW_PERIOD_S)
        self._throttles = CachedReading(self._read_throttles, SLOW_PERIOD_S)
        self.governor = CachedReading(self._read_governor, RARE_PERIOD_S)
        self.battery = CachedReading(self._read_battery, RARE_PERIOD_S)
        self._throttled_before: int | None = None

    def clock_ghz(self, now_s: float, loads: Sequence[float]) -> tuple[float | None, float | None]:
        """Return the mean clock of the cores that work, or of the fastest one, and the most it can
        be."""
        clocks = self._clocks.get(now_s)
        if not clocks:
            return None, None
        currents = [current for current, _ in clocks]
        busy = [
            current for current, load in zip(currents, loads, strict=False) if load >= BUSY_LOAD
        ]
        if busy and len(currents) == len(loads):
            present = sum(busy) / len(busy)
        else:
            present = max(currents)
        most = max(most for _, most in clocks)
        # Some drivers name the clock without boost; what is exceeded is not the most there can be.
        return present, most if most >= present * _EXCEEDED_BELOW else None

    def throttled(self, now_s: float) -> int | None:
        """Return how often cores were slowed down for heat since the last call."""
        count = self._throttles.get(now_s)
        before = self._throttled_before
        self._throttled_before = count
        if count is None:
            return None
        if before is not None:
            return max(0, count - before)
        return 0

    def forget_throttles(self) -> None:
        """Count from the next look on."""
        self._throttled_before = None

    def _read_clocks(self) -> list[tuple[float, float]]:
        read = [
            (clock.current / 1000, clock.max / 1000) for clock in self._source.cpu_freq(percpu=True)
        ]
        # Some kernels and versions give the clock in units of their own.
        return [(current, most) for current, most in read if 0.05 < current < 20 and 0 <= most < 20]

    def _read_temperature(self) -> float | None:
        chips = self._source.sensors_temperatures()
        name = next((name for name in _CHIPS if chips.get(name)), None)
        if name:
            found = [sensor.current for sensor in chips[name]]
        else:
            found = []
        sane = [value for value in found if math.isfinite(value) and 0 < value < 150]
        return max(sane, default=None)

    def _read_throttles(self) -> int | None:
        counts = [
            number_in(path)
            for path in self._cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
        ]
        known = [count for count in counts if count is not None]
        if known:
            return sum(known)
        return None

    def _read_governor(self) -> Governor | None:
        policy = min(self._cpus.glob("cpu[0-9]*/cpufreq"), default=None)
        if policy is None or not (name := _word(policy / "scaling_governor")):
            return None
        return Governor(name, or_none(lambda: _word(policy / "scaling_driver")) or "")

    def _read_battery(self) -> Battery | None:
        found = self._source.sensors_battery()
        if found is None or not 0 <= found.percent <= 100:
            return None
        return Battery(float(found.percent), found.power_plugged)


def _word(path: Path) -> str:
    return clean_line(path.read_text(encoding="utf-8", errors="replace").strip(), 20)


def number_in(path: Path) -> int | None:
    """Return the whole number that a file of the system holds; None where it holds none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
