"""Stands in for psutil where the machine's load, battery and swap are looked at."""

from collections import namedtuple
from types import SimpleNamespace

from app.machine.sensors.tuning_conditions import ConditionsWatch

Times = namedtuple("Times", "user system idle iowait steal")


class ScriptedMachine:
    """Two cores; a test says what happens between two looks."""

    def __init__(self) -> None:
        self.now_s = self.own_s = self.busy_s = self.steal_s = 0.0
        self.swapped_bytes = 0
        self.on_mains: bool | None = None
        """None for a machine without a battery."""

    def watch(self) -> ConditionsWatch:
        return ConditionsWatch(self, lambda: self.own_s, lambda: self.now_s)

    def cpu_times(self, percpu: bool) -> list[Times]:
        idle_s = self.now_s - (self.busy_s + self.own_s) / 2
        return [
            Times((self.busy_s + self.own_s) / 2, 0.0, idle_s, 0.0, self.steal_s / 2)
            for _ in range(2)
        ]

    def swap_memory(self) -> SimpleNamespace:
        return SimpleNamespace(
            sin=self.swapped_bytes // 2, sout=self.swapped_bytes - self.swapped_bytes // 2
        )

    def sensors_battery(self) -> SimpleNamespace | None:
        return (
            None
            if self.on_mains is None
            else SimpleNamespace(percent=80, power_plugged=self.on_mains)
        )
