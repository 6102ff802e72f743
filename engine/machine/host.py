"""This machine's cores, quota and memory. Never imports numba."""

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import psutil

from engine.machine.core_map import CoreMap, read_core_map
from engine.machine.topology import ROOT, Cores, cgroup_files, cpu_quota, read_cores

__all__ = [
    "CREW_NAME",
    "CoreMap",
    "Cores",
    "allowed_cpus",
    "available_memory_bytes",
    "core_map",
    "cores",
    "cpu_quota",
    "total_memory_bytes",
]

CREW_NAME = "crew-"
"""Beginning of the names of the threads that compute next to the caller's."""
_CPUS = Path("/sys/devices/system/cpu")


def allowed_cpus() -> list[int]:
    """Return the logical CPUs of this process's affinity set."""
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):  # a sandbox may refuse to tell
            return sorted(os.sched_getaffinity(0))
    return list(range(psutil.cpu_count(logical=True) or 1))


def cores() -> Cores:
    """Return the allowed CPUs, grouped by physical core, and the control group's quota."""
    allowed = allowed_cpus()
    result = read_cores(allowed)
    if not _CPUS.exists():  # not Linux: only the count is known
        physical = min(len(allowed), psutil.cpu_count(logical=False) or len(allowed))
        result = replace(result, n_physical=physical)
    return replace(result, name=result.name or platform.processor() or platform.machine())


def core_map() -> CoreMap:
    """Return the online CPUs by physical core and cache, and which of them are allowed."""
    return read_core_map(allowed_cpus())


def available_memory_bytes(root: Path = ROOT) -> int:
    """Return the bytes available without swapping: the system's figure, capped by the control
    groups."""
    return min(
        [
            _system_memory_bytes("available", "SC_AVPHYS_PAGES"),
            *(max(0, limit - used) for limit, used in _memory_groups(root)),
        ]
    )


def _system_memory_bytes(figure: str, pages: str) -> int:
    """Return a figure of psutil, or that of the C library in pages if there is no ``/proc``."""
    try:
        return int(getattr(psutil.virtual_memory(), figure))
    except (OSError, psutil.Error):
        return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _memory_groups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, bytes in use) of each limited control group.

    File pages are not counted, since they can be dropped.
    """
    for limit_name, used_name, controller in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory"),
    ):
        texts = (
            cgroup_files(name, root, controller) for name in (limit_name, used_name, "memory.stat")
        )
        for limit_text, used_text, stat in zip_longest(*texts, fillvalue=""):
            if limit_text.isdigit() and used_text.isdigit():
                yield int(limit_text), max(0, int(used_text) - _file_pages_bytes(stat))


def _file_pages_bytes(stat: str) -> int:
    rows = (line.split() for line in stat.splitlines())
    counts = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
    # Version 1 counts the groups below in lines of their own.
    return sum(
        counts.get(f"total_{name}", counts.get(name, 0))
        for name in ("active_file", "inactive_file")
    )


def total_memory_bytes(root: Path = ROOT) -> int:
    """Return the bytes of memory of the machine, or of the control group if that has less."""
    return min(
        [
            _system_memory_bytes("total", "SC_PHYS_PAGES"),
            *(limit for limit, _ in _memory_groups(root)),
        ]
    )
