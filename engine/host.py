"""What this machine is: cores, quota, memory, processor features. Never imports numba."""

import os
import platform
from dataclasses import replace
from pathlib import Path

import psutil

from engine.topology import Cores, cgroup_files, cpu_quota, read_cores

__all__ = ["Cores", "allowed_cpus", "available_memory_bytes", "cores", "cpu_quota", "total_memory_bytes"]

_CPUS = Path("/sys/devices/system/cpu")


def allowed_cpus() -> list[int]:
    """Logical CPUs of this process's affinity set."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(psutil.cpu_count(logical=True) or 1))


def cores() -> Cores:
    """Find the allowed CPUs, grouped by physical core, and the control group's quota."""
    allowed = allowed_cpus()
    found = read_cores(allowed)
    if not _CPUS.exists():  # not Linux: the count is all there is to know
        physical = min(len(allowed), psutil.cpu_count(logical=False) or len(allowed))
        found = replace(found, n_physical=physical)
    return replace(found, name=found.name or platform.processor() or platform.machine())


def available_memory_bytes() -> int:
    """Memory that can be had without pushing others out: the system's figure, capped by the control group."""
    available = int(psutil.virtual_memory().available)
    for limit, used in zip(cgroup_files("memory.max"), cgroup_files("memory.current"), strict=False):
        if limit.isdigit() and used.isdigit():
            available = min(available, max(0, int(limit) - int(used)))
    return available


def total_memory_bytes() -> int:
    """Memory of the machine, or of the control group where that has less."""
    limits = [int(limit) for limit in cgroup_files("memory.max") if limit.isdigit()]
    return min([int(psutil.virtual_memory().total), *limits])
