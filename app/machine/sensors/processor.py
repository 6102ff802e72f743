"""Load, clock, temperature, governor and battery, from psutil and (where psutil lacks them)
sysfs.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from app.machine.sensors.cached_reading import CachedReading, or_none
from app.machine.sensors.sample import BUSY_LOAD, Battery, ClockLimit, Governor
from app.text.clean_text import clean_line

CLOCK_PERIOD_S = 0.9
SLOW_PERIOD_S = 2.0
"""Period of values that change slowly: temperature, throttling."""
RARE_PERIOD_S = 10.0
"""Period of values that users change: governor, battery."""
_EXCEEDED_BELOW = 0.98
"""Share of the current clock below which the stated highest clock is wrong; clocks are not
exact.
"""
_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal", "acpitz")
"""Temperature sensors of processors, most exact first."""
_MOST_CLOCKS = 1024
_MOST_CPUINFO_CHARACTERS = 1 << 13
"""Limit on what is read of /proc/cpuinfo: the first processor."""
_LOW_VOLTAGE = 0x1
_HELD_DOWN = 0x2 | 0x4 | 0x8
"""Bits of the state of a Raspberry Pi's firmware: clock capped, throttled, temperature limit."""
_CPU_COOLERS = ("thermal-cpufreq", "cpufreq-", "Processor")
"""Beginnings of the types of cooling devices that slow processors."""
_MOST_COOLERS = 256
_IDLE_TIMES = ("idle", "iowait")
_COUNTED_TWICE = ("guest", "guest_nice")
"""Times that Linux includes in user and nice."""


class Loads(NamedTuple):
    """Load of the cores between two readings."""

    cores: tuple[float, ...]
    others_cores: float
    stolen_cores: float
    """Part of ``others_cores`` that the host of a virtual machine took."""
    n_allowed: int
    """Number of logical CPUs on which this process may run; only there do others disturb it."""


class CoreLoads:
    """Loads from differences of processor times."""

    def __init__(self, source: Any, own_cpu: Callable[[], float] = time.process_time) -> None:
        self._source = source
        self._own_cpu = own_cpu
        self._last: tuple[list[tuple[float, float]], float, float] | None = None
        """Busy and total seconds of each core, seconds stolen by the host, seconds of this
        process.
        """

    def since_before(self, interval_s: float) -> Loads | None:
        """Return the loads since the last call; None at first, and if the number of cores
        changed.
        """
        times_of_cores = self._source.cpu_times(percpu=True)
        cores = [_spent(times) for times in times_of_cores]
        allowed = allowed_cpus(len(cores))
        stolen_s = sum(getattr(times_of_cores[cpu], "steal", 0.0) for cpu in allowed)
        own_s = self._own_cpu()
        last = self._last
        self._last = (cores, stolen_s, own_s)
        if last is None or len(last[0]) != len(cores) or interval_s <= 0:
            return None
        spent = [
            (busy - busy0, total - total0)
            for (busy, total), (busy0, total0) in zip(cores, last[0], strict=True)
        ]
        loads = tuple(
            min(1.0, max(0.0, busy / total)) if total > 0 else 0.0 for busy, total in spent
        )
        busy_s = sum(spent[cpu][0] for cpu in allowed)
        stolen_since_s = max(0.0, stolen_s - last[1])
        others_s = busy_s + stolen_since_s - (own_s - last[2])
        return Loads(
            loads, max(0.0, others_s / interval_s), stolen_since_s / interval_s, len(allowed)
        )


def allowed_cpus(n_cpus: int) -> Sequence[int]:
    """Return the logical CPUs on which this process may run, of those that are online."""
    cpus: Sequence[int] = range(n_cpus)
    if hasattr(os, "sched_getaffinity"):
        allowed = or_none(lambda: sorted(os.sched_getaffinity(0))) or cpus
        # CPUs that are offline have no times, and numbers are not places in the list then
        if allowed[-1] < n_cpus:
            return allowed
    return cpus


def _spent(times: Any) -> tuple[float, float]:
    """Return busy seconds and total seconds."""
    seconds_by_state = {
        name: getattr(times, name) for name in times._fields if name not in _COUNTED_TWICE
    }
    total = sum(seconds_by_state.values())
    return total - sum(seconds_by_state.get(name, 0.0) for name in (*_IDLE_TIMES, "steal")), total


class Processor:
    """Readings of the processor besides its load."""

    def __init__(self, source: Any, sysfs: Path, procfs: Path = Path("/proc")) -> None:
        self._source = source
        self._cpus = sysfs / "devices" / "system" / "cpu"
        self._cpuinfo = procfs / "cpuinfo"
        self._firmware_state = sysfs / "devices/platform/soc/soc:firmware/get_throttled"
        self._cooling_devices = sysfs / "class" / "thermal"
        self._clocks = CachedReading(self._read_clocks, CLOCK_PERIOD_S)
        self.temperature_c = CachedReading(self._read_temperature, SLOW_PERIOD_S)
        self._throttles = CachedReading(self._read_throttles, SLOW_PERIOD_S)
        self.clock_limit = CachedReading(self._read_clock_limit, SLOW_PERIOD_S)
        self.governor = CachedReading(self._read_governor, RARE_PERIOD_S)
        self.battery = CachedReading(self._read_battery, RARE_PERIOD_S)
        self._throttled_before: int | None = None

    def clock_ghz(self, now_s: float, loads: Sequence[float]) -> tuple[float | None, float | None]:
        """Return the mean clock of working cores (else the highest clock), and the possible
        maximum.
        """
        readings = self._clocks.get(now_s) or []
        clocks = [clock for clock in readings if clock is not None]
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
        # some drivers state the clock without boost
        return present, most if most >= present * _EXCEEDED_BELOW else None

    def core_clocks_ghz(self, now_s: float) -> tuple[float | None, ...]:
        """Return each clock; None for one that is unknown."""
        clocks = self._clocks.get(now_s) or []
        return tuple(None if clock is None else clock[0] for clock in clocks)

    def throttled(self, now_s: float) -> int | None:
        """Return how often heat slowed cores since the last call."""
        count = self._throttles.get(now_s)
        last_count = self._throttled_before
        self._throttled_before = count
        if count is None:
            return None
        if last_count is not None:
            return max(0, count - last_count)
        return 0

    def forget_throttles(self) -> None:
        """Start counting with the next reading."""
        self._throttled_before = None

    def _read_clocks(self) -> list[tuple[float, float] | None]:
        """Return each clock with its maximum, in GHz."""
        if self._is_clock_nominal:
            return []
        clocks: list[tuple[float, float] | None] = []
        for clock in self._source.cpu_freq(percpu=True)[:_MOST_CLOCKS]:
            current = clock.current / 1000
            most = clock.max / 1000
            # some kernels use other units
            if 0.05 < current < 20 and 0 <= most < 20:
                clocks.append((current, most))
            else:
                clocks.append(None)
        return clocks

    @cached_property
    def _is_clock_nominal(self) -> bool:
        """Whether the system states one clock for ever, as many virtual machines do."""
        if (self._cpus / "cpu0" / "cpufreq").exists():
            return False
        text = or_none(lambda: _beginning_of(self._cpuinfo)) or ""
        flags = next((row for row in text.splitlines() if row.startswith("flags")), "").split()
        return "hypervisor" in flags and "aperfmperf" not in flags

    def _read_clock_limit(self) -> ClockLimit | None:
        """Return why the kernel or the firmware holds the clock down now; None if it does not."""
        state = or_none(lambda: int(_word(self._firmware_state), 16)) or 0
        if state & _LOW_VOLTAGE:
            return ClockLimit.VOLTAGE
        if state & _HELD_DOWN:
            return ClockLimit.HEAT
        for device in sorted(self._cooling_devices.glob("cooling_device*"))[:_MOST_COOLERS]:
            name = or_none(partial(_word, device / "type")) or ""
            level = number_in(device / "cur_state") or 0
            if name.startswith(_CPU_COOLERS) and level > 0:
                return ClockLimit.HEAT
        return None

    def _read_temperature(self) -> float | None:
        chips = self._source.sensors_temperatures()
        name = next((name for name in _CHIPS if chips.get(name)), None)
        if name:
            temperatures = [sensor.current for sensor in chips[name]]
        else:
            temperatures = []
        sane = [value for value in temperatures if math.isfinite(value) and 0 < value < 150]
        return max(sane, default=None)

    def _read_throttles(self) -> int | None:
        counts = [
            number_in(path)
            for path in self._cpus.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
        ]
        readable_counts = [count for count in counts if count is not None]
        if readable_counts:
            return sum(readable_counts)
        return None

    def _read_governor(self) -> Governor | None:
        policy = min(self._cpus.glob("cpu[0-9]*/cpufreq"), default=None)
        if policy is None or not (name := _word(policy / "scaling_governor")):
            return None
        return Governor(name, or_none(lambda: _word(policy / "scaling_driver")) or "")

    def _read_battery(self) -> Battery | None:
        battery = self._source.sensors_battery()
        if battery is None or not 0 <= battery.percent <= 100:
            return None
        return Battery(float(battery.percent), battery.power_plugged)


def _beginning_of(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(_MOST_CPUINFO_CHARACTERS)


def _word(path: Path) -> str:
    return clean_line(path.read_text(encoding="utf-8", errors="replace").strip(), 20)


def number_in(path: Path) -> int | None:
    """Return the number in a system file; None if there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
