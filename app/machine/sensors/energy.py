"""Power and energy, from the machine's batteries or the processor's energy counters (RAPL).

None of it needs root. On battery the whole machine is measured; on mains only the processor, and
only where its counters can be read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from app.machine.sensors.cached_reading import CachedReading
from app.text.record import record

BATTERY_PERIOD_S = 2.0
"""Period of readings of the batteries, whose firmware measures every few seconds at best."""
LEAST_SPAN_S = 3.0
"""Seconds below which the energy per token is too uncertain to show."""
_MICRO = 1e-6
_S_PER_H = 3600.0
_LEAST_W = 0.3
_MOST_W = 500.0
"""Power outside these bounds is an error of the firmware."""
_LONGEST_LEFT_S = 48 * _S_PER_H
_SMOOTHING_S = 60.0
"""Time over which the power is averaged for the time left."""
_MAX_SUPPLIES = 16
_MAX_NUMBER_CHARS = 24


class EnergyScope(str, Enum):
    """Part of the machine whose energy is measured; its value is the word for it."""

    MACHINE = "whole machine"
    PROCESSOR = "processor"


@record
class EnergyReading:
    """Energy that was used up to a moment."""

    scope: EnergyScope
    began_s: float
    """Time from which the joules count. It changes when the supply changes."""
    at_s: float
    joules: float
    watts: float | None
    """Power now; None at the first reading of a counter."""
    left_s: float | None = None
    """Seconds until the batteries are empty; None on mains, or if unknown."""


def joules_between(first: EnergyReading | None, last: EnergyReading | None) -> float | None:
    """Return the energy between two readings; None if it was not measured throughout."""
    if first is None or last is None:
        return None
    if (first.scope, first.began_s) != (last.scope, last.began_s):
        return None
    return last.joules - first.joules


def joules_per_token(
    readings: Sequence[EnergyReading], token_times_s: Sequence[float]
) -> float | None:
    """Return the mean energy per token of a reply; None if too little of it was measured.

    Args:
        readings: readings from the time of the reply, oldest first.
        token_times_s: times of its tokens.
    """
    if len(token_times_s) < 2:
        return None
    begin_s = token_times_s[0]
    end_s = token_times_s[-1]
    inside = [reading for reading in readings if begin_s <= reading.at_s <= end_s]
    if not inside:
        return None
    first = inside[0]
    last = inside[-1]
    joules = joules_between(first, last)
    if joules is None or last.at_s - first.at_s < LEAST_SPAN_S:
        return None
    n_tokens = sum(first.at_s < time_s <= last.at_s for time_s in token_times_s)
    if n_tokens == 0 or joules <= 0:
        return None
    return joules / n_tokens


class EnergyMeter:
    """Meter of the energy used since its first reading.

    Call ``read`` about once a second: the power of batteries is summed up from these calls. Energy
    counters count by themselves.

    Args:
        is_exact: whether batteries are read every two seconds at any cost; else more rarely if
            that takes long, which is tens of milliseconds on some laptops.
    """

    def __init__(self, sysfs: Path = Path("/sys"), is_exact: bool = False) -> None:
        self._batteries = CachedReading(lambda: read_batteries(sysfs), BATTERY_PERIOD_S)
        if is_exact:
            self._batteries = CachedReading(
                lambda: read_batteries(sysfs), BATTERY_PERIOD_S, cost_clock=lambda: 0.0
            )
        self._counters = EnergyCounters(sysfs / "class" / "powercap")
        self._last: EnergyReading | None = None
        self._mean_w = 0.0

    def read(self, now_s: float) -> EnergyReading | None:
        """Return the energy used so far; None if this machine does not measure it."""
        last = self._last
        batteries = self._batteries.get(now_s)
        if batteries is not None:
            self._last = self._on_battery(batteries, last, now_s)
        else:
            self._last = self._on_mains(last, now_s)
        return self._last

    def _on_battery(
        self, batteries: BatteryPower, last: EnergyReading | None, now_s: float
    ) -> EnergyReading:
        watts = batteries.watts
        if last is None or last.scope is not EnergyScope.MACHINE or last.watts is None:
            self._mean_w = watts
            left_s = batteries.left_s(watts)
            return EnergyReading(EnergyScope.MACHINE, now_s, now_s, 0.0, watts, left_s)
        elapsed_s = max(0.0, now_s - last.at_s)
        joules = last.joules + elapsed_s * (last.watts + watts) / 2
        weight = 1 - math.exp(-elapsed_s / _SMOOTHING_S)
        self._mean_w = self._mean_w + weight * (watts - self._mean_w)
        left_s = batteries.left_s(self._mean_w)
        return EnergyReading(EnergyScope.MACHINE, last.began_s, now_s, joules, watts, left_s)

    def _on_mains(self, last: EnergyReading | None, now_s: float) -> EnergyReading | None:
        grown = self._counters.joules_since_last()
        if grown is None:
            return None
        if last is None or last.scope is not EnergyScope.PROCESSOR:
            return EnergyReading(EnergyScope.PROCESSOR, now_s, now_s, 0.0, None)
        elapsed_s = now_s - last.at_s
        watts = last.watts
        if elapsed_s > 0:
            watts = grown / elapsed_s
        joules = last.joules + grown
        return EnergyReading(EnergyScope.PROCESSOR, last.began_s, now_s, joules, watts)


@record
class BatteryPower:
    """Power that all batteries of the machine deliver together."""

    watts: float
    watt_hours: float | None
    """Energy that is left in them; None if unknown."""

    def left_s(self, watts: float) -> float | None:
        """Return the seconds until the batteries are empty at a power; None if unknown."""
        if self.watt_hours is None or watts <= 0:
            return None
        seconds = self.watt_hours * _S_PER_H / watts
        if seconds > _LONGEST_LEFT_S:
            return None
        return seconds


def read_batteries(sysfs: Path) -> BatteryPower | None:
    """Return the power of the batteries; None on mains, without a battery, or if it is unknown.

    One of two batteries may rest ("Unknown", "Not charging") while the other one delivers. Drivers
    disagree on the sign of the current of a battery that delivers.
    """
    supplies = sorted((sysfs / "class" / "power_supply").glob("*"))[:_MAX_SUPPLIES]
    batteries = [supply for supply in supplies if _is_system_battery(supply)]
    states = [_word(battery / "status") for battery in batteries]
    # with "Discharging" and a charger that is too weak, the battery delivers only a part
    if "Charging" in states or any(_is_mains(supply) for supply in supplies):
        return None
    # USB ports may claim to deliver power while they take it
    if "Discharging" not in states and any(_is_usb_charger(supply) for supply in supplies):
        return None
    watts = 0.0
    watt_hours = 0.0
    is_energy_known = True
    for battery, state in zip(batteries, states, strict=True):
        power_w = _power_w(battery)
        if state == "Discharging" and power_w is None:
            return None
        if state in ("Discharging", "Unknown"):
            watts += power_w or 0.0
        energy_wh = _energy_wh(battery)
        is_energy_known = is_energy_known and energy_wh is not None
        watt_hours += energy_wh or 0.0
    if not _LEAST_W <= watts <= _MOST_W:
        return None
    if not is_energy_known or watt_hours <= 0:
        return BatteryPower(watts, None)
    return BatteryPower(watts, watt_hours)


def _is_system_battery(supply: Path) -> bool:
    """Whether a supply is a battery of the machine, not one of a mouse or a headset."""
    return (
        _word(supply / "type") == "Battery"
        and _word(supply / "scope") != "Device"
        and _word(supply / "present") != "0"
    )


def _is_mains(supply: Path) -> bool:
    return _word(supply / "type") == "Mains" and _word(supply / "online") == "1"


def _is_usb_charger(supply: Path) -> bool:
    is_online = _word(supply / "online") not in ("", "0")
    return _word(supply / "type").startswith(("USB", "Wireless")) and is_online


def _power_w(battery: Path) -> float | None:
    power_uw = _number(battery / "power_now")
    if power_uw is not None:
        return abs(power_uw) * _MICRO
    current_ua = _number(battery / "current_now")
    volts = _volts(battery)
    if current_ua is None or volts is None:
        return None
    return abs(current_ua) * _MICRO * volts


def _energy_wh(battery: Path) -> float | None:
    energy_uwh = _number(battery / "energy_now")
    if energy_uwh is not None:
        return max(0, energy_uwh) * _MICRO
    charge_uah = _number(battery / "charge_now")
    volts = _volts(battery)
    if charge_uah is None or volts is None:
        return None
    return max(0, charge_uah) * _MICRO * volts


def _volts(battery: Path) -> float | None:
    voltage_uv = _number(battery / "voltage_now")
    if voltage_uv is None or voltage_uv <= 0:
        return None
    return voltage_uv * _MICRO


class EnergyCounters:
    """Energy counters of the processor packages and their memory, as Linux shows RAPL."""

    def __init__(self, powercap: Path) -> None:
        self._powercap = powercap
        self._zones: list[Path] | None = None
        self._last: dict[Path, int] = {}

    def joules_since_last(self) -> float | None:
        """Return the energy since the last call; None at first, and where it cannot be read.

        Counters start again at 0 when they are full.
        """
        if self._zones is None:
            self._zones = self._find_zones()
        counts: dict[Path, int] = {}
        for zone in self._zones:
            count = _number(zone / "energy_uj")
            if count is None or count < 0:
                self._last = {}
                return None
            counts[zone] = count
        last = self._last
        self._last = counts
        if not counts:
            return None
        return _MICRO * sum(self._growth(zone, last.get(zone), counts[zone]) for zone in counts)

    def _growth(self, zone: Path, last: int | None, count: int) -> int:
        if last is None:
            return 0
        if count >= last:
            return count - last
        full = _number(zone / "max_energy_range_uj") or 0
        return max(0, count - last + full)

    def _find_zones(self) -> list[Path]:
        """Return the packages and their memory; cores and graphics are parts of a package."""
        packages = sorted(self._powercap.glob("intel-rapl:*"))
        return [zone for zone in packages if _word(zone / "name").startswith(("package", "dram"))]


def _word(path: Path) -> str:
    """Return the text of a system file; "" if it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_NUMBER_CHARS).strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the number in a system file; None if there is none."""
    try:
        return int(_word(path))
    except ValueError:
        return None
