"""Scripted machine for all pictures: its cores, and readings for the doctor and the speed views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.machine.doctor.examine import Examination
from app.machine.doctor.host_system import HostSystem
from app.machine.doctor.readings import (
    ClockReadings,
    CoreReadings,
    DiskReadings,
    EngineReadings,
    MemoryReadings,
    TerminalReadings,
)
from app.models.library import advice
from app.models.library.speed import ModelSpeed
from app.tui.chat.events import EngineFeed
from app.tui.screens import doctor
from app.tui.speed.watch import PerformanceView, PerformanceWatch
from engine.machine import host
from engine.machine.topology import read_cores
from engine.measure.fit import MachineMemory, MachineRates, fit
from tests.engine import sysfs_trees

GIB = 1 << 30

MACHINES: dict[str, tuple[int, Callable[[Path], Path]]] = {
    "laptop": (4, sysfs_trees.two_cores_four_threads),
    "hybrid": (20, sysfs_trees.hybrid),
    "two-sockets": (24, sysfs_trees.two_sockets),
    "virtual-machine": (4, sysfs_trees.virtual_machine),
    "quota": (
        4,
        lambda root: sysfs_trees.with_quota(sysfs_trees.virtual_machine(root), "200000 100000"),
    ),
}
"""How many logical CPUs each machine has, and what writes its recorded tree of system files."""

_MEMORY = MachineMemory(8 * GIB, 5 * GIB)
_RATES = MachineRates(12.0, {"Q4_K": 10.5}, {"Q4_K": 40.0})


def examination() -> Examination:
    """The engine's measurements for the doctor."""
    needs = advice.needs_of_size(3.2e9, "Q4_K_M")
    suggestions = advice.suggestions(_MEMORY, _RATES)
    fitting = fit(needs, _MEMORY, _RATES, 4096)
    return Examination(
        engine=EngineReadings(
            "avx2", 2, 12.1, 40.0, "/home/me/.cache/jalopy/kernels-1a2b", 9_000_000
        ),
        rates=_RATES,
        memory=_MEMORY,
        needs=needs,
        fit=fitting,
        speed=ModelSpeed(fitting.decode_tps, fitting.prefill_tps),
        suggestions=tuple(suggestions),
    )


def stand_in(
    monkeypatch: pytest.MonkeyPatch,
    root: Path,
    machine: str,
    view: PerformanceView,
    clock: Callable[[], float],
) -> None:
    """Put this machine in the place of the one that the tests run on."""
    n_cpus, write_tree = MACHINES[machine]
    cores = read_cores(range(n_cpus), write_tree(root))
    monkeypatch.setattr(host, "cores", lambda: cores)
    monkeypatch.setattr(
        EngineFeed, "measure_machine", lambda flow: setattr(flow, "_rss_bytes", 118 << 20)
    )
    monkeypatch.setattr(PerformanceWatch, "look", lambda watch: watch.pace.add_cost(0.02, True))
    monkeypatch.setattr(PerformanceWatch, "read_view", lambda watch: view)
    read = CoreReadings("Intel Core i5-4300U", 2, 4, 4, 2, None, frozenset({"avx2", "fma"}), 0.1)
    clocks = ClockReadings(
        "powersave", "intel_pstate", "balance_power", 2900.0, 2900.0, True, 0, True
    )
    memory = MemoryReadings(8 * GIB, 5 * GIB, 2 * GIB, 0, "madvise")
    terminal = TerminalReadings(
        True, "xterm-256color", 80, 24, "utf-8", 1 << 24, "desktop", "xclip", "x11", ""
    )
    monkeypatch.setattr(doctor, "read_cores", lambda: read)
    monkeypatch.setattr(doctor, "read_clock", lambda: clocks)
    monkeypatch.setattr(doctor, "read_memory", lambda: memory)
    disk = DiskReadings("spinning", "sda", 2_000_000_000, "ext4")
    monkeypatch.setattr(doctor, "read_disk", lambda path, host_system: disk)
    monkeypatch.setattr(doctor, "read_host_system", lambda environ: HostSystem())
    monkeypatch.setattr(
        doctor, "read_terminal", lambda environ, is_tty, encoding, size: _sized(terminal, size)
    )


def _sized(terminal: TerminalReadings, size: tuple[int, int]) -> TerminalReadings:
    return replace(terminal, columns=size[0], rows=size[1])
