"""Power, energy per token and the time left on battery, where they are measured."""

from __future__ import annotations

from app.machine.sensors.energy import EnergyReading, EnergyScope
from app.machine.sensors.sample import MachineSample
from app.tui.drawing.lines import Line, line, muted
from app.tui.speed.watch import PerformanceView

_MINUTE_S = 60
_STEP_S = 300
"""Steps of a time left of hours, which is no more exact."""


def energy_notes(view: PerformanceView, sample: MachineSample) -> list[Line]:
    """Return notes on the supply: charge, power, energy per token, time left; none if unknown."""
    notes = []
    if sample.battery is not None:
        supply = {True: "on mains", False: "on battery", None: "battery"}[sample.battery.on_mains]
        notes.append(f"{supply} {sample.battery.percent:.0f} %")
    if sample.energy is not None:
        notes += _readings(sample.energy)
    if view.joules_per_token is not None:
        notes.append(f"{_amount(view.joules_per_token)} J per token")
    return [line(muted(note)) for note in notes]


def _readings(energy: EnergyReading) -> list[str]:
    notes = []
    if energy.watts is not None:
        watts = f"{_amount(energy.watts)} W"
        if energy.scope is EnergyScope.PROCESSOR:
            watts = f"processor {watts}"
        notes.append(watts)
    if energy.left_s is not None:
        notes.append(f"{_duration(energy.left_s)} left")
    return notes


def _amount(value: float) -> str:
    if value < 0.995:
        return f"{value:.2f}"
    return f"{value:.1f}"


def _duration(seconds: float) -> str:
    """Return a time left: "26 min", "2 h 10 min"."""
    minutes = round(seconds / _MINUTE_S)
    if minutes < 60:
        return f"{minutes} min"
    minutes = round(seconds / _STEP_S) * _STEP_S // _MINUTE_S
    return f"{minutes // 60} h {minutes % 60} min"
