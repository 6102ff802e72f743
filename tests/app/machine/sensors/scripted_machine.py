"""A machine of scripted readings: the answers of psutil, and a recorded tree of system files."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CpuTimes = namedtuple("CpuTimes", "user nice system idle iowait irq softirq steal guest guest_nice")
Frequency = namedtuple("Frequency", "current min max")


class ScriptedPsutil:
    """Stand-in for psutil. Attributes are values to return, or exceptions to raise."""

    def __init__(self, n_cores: int = 2) -> None:
        self.busy_s = [10.0] * n_cores
        self.idle_s = [100.0] * n_cores
        self.steal_s = 0.0
        self.freq: Any = [Frequency(2500.0, 800.0, 2900.0)] * n_cores
        self.temperatures: Any = {
            "nvme": [SimpleNamespace(label="", current=99.0)],
            "coretemp": [
                SimpleNamespace(label="Core 0", current=68.0),
                SimpleNamespace(label="", current=71.0),
            ],
        }
        self.battery: Any = SimpleNamespace(percent=83.0, secsleft=9000, power_plugged=False)
        self.available: Any = 3 << 30
        self.swap: Any = SimpleNamespace(total=2 << 30, used=1 << 20)
        self.thread_times: Any = {1: 1.0, 2: 1.0, 3: 1.0}
        self.calls: list[str] = []

    def run(self, busy: list[float], seconds: float = 1.0) -> None:
        """Let time pass with these loads of the cores."""
        for core, load in enumerate(busy):
            self.busy_s[core] += load * seconds
            self.idle_s[core] += (1 - load) * seconds

    def cpu_times(self, percpu: bool) -> list[CpuTimes]:
        assert percpu
        return [
            # Half of the idle time waits for disks. The user time already includes guests.
            CpuTimes(busy, 0.0, 0.0, idle / 2, idle / 2, 0.0, 0.0, self.steal_s, busy / 2, 0.0)
            for busy, idle in zip(self.busy_s, self.idle_s, strict=True)
        ]

    def cpu_freq(self, percpu: bool) -> Any:
        return self._say("cpu_freq", self.freq)

    def sensors_temperatures(self) -> Any:
        return self._say("sensors_temperatures", self.temperatures)

    def sensors_battery(self) -> Any:
        return self._say("sensors_battery", self.battery)

    def virtual_memory(self) -> Any:
        return SimpleNamespace(available=self._say("virtual_memory", self.available))

    def swap_memory(self) -> Any:
        return self._say("swap_memory", self.swap)

    def Process(self) -> Any:
        return SimpleNamespace(threads=self._threads)

    def _threads(self) -> Any:
        times = self._say("threads", self.thread_times)
        return [
            SimpleNamespace(id=number, user_time=spent, system_time=0.0)
            for number, spent in times.items()
        ]

    def _say(self, name: str, value: Any) -> Any:
        self.calls.append(name)
        if isinstance(value, BaseException):
            raise value
        return value


def write_tree(root: Path, files: dict[str, str]) -> Path:
    """Write a recorded tree of system files."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


LAPTOP_2014 = {
    f"devices/system/cpu/cpu{n}/{name}": content
    for n in range(4)
    for name, content in (
        ("cpufreq/scaling_governor", "powersave\n"),
        ("cpufreq/scaling_driver", "intel_pstate\n"),
        ("thermal_throttle/core_throttle_count", "7\n"),
    )
}
"""Two cores of two threads with intel_pstate."""

STATUS = (
    "Name:\tjalopy\nVmRSS:\t  512000 kB\nRssAnon:\t  204800 kB\nRssFile:\t  286720 "
    "kB\nRssShmem:\t   20480 kB\n"
)
