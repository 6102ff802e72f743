"""What this machine is: cores, quota, memory, processor features. Never imports numba."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Cores:
    """Processors this process may use.

    Attributes:
        logical: numbers of all allowed logical CPUs, physical cores first, then their siblings.
        n_physical: how many physical cores the allowed CPUs belong to.
        quota: whole CPUs the control group grants, or None where it sets no limit.
    """

    logical: tuple[int, ...]
    n_physical: int
    quota: int | None

    @property
    def default_threads(self) -> int:
        """One thread a physical core, never more than the quota: siblings share one memory port."""
        return max(1, min(self.n_physical, self.quota or self.n_physical))

    @property
    def most_threads(self) -> int:
        """No more threads than allowed logical CPUs: a spinning barrier cannot bear it."""
        return max(1, len(self.logical))


def allowed_cpus() -> list[int]:
    """Logical CPUs of this process's affinity set."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(psutil.cpu_count(logical=True) or 1))


def cores() -> Cores:
    """Find the allowed CPUs, grouped by physical core, and the control group's quota."""
    allowed = allowed_cpus()
    first_of_core: dict[str, int] = {}
    siblings: list[int] = []
    for cpu in allowed:
        key = _read(_CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list") or str(cpu)
        if key in first_of_core:
            siblings.append(cpu)
        else:
            first_of_core[key] = cpu
    physical = list(first_of_core.values())
    return Cores((*physical, *siblings), len(physical), cpu_quota())


def cpu_quota() -> int | None:
    """Whole CPUs granted by ``cpu.max`` of this process's control groups, all levels; None without a limit."""
    limits = [quota for quota in map(_quota_of, _cgroup_files("cpu.max")) if quota is not None]
    return min(limits) if limits else None


def _quota_of(text: str) -> int | None:
    parts = text.split()
    if len(parts) != 2 or not parts[0].isdigit() or not parts[1].isdigit():
        return None
    return max(1, int(parts[0]) // max(1, int(parts[1])))


def available_memory_bytes() -> int:
    """Memory that can be had without pushing others out: the system's figure, capped by the control group."""
    available = int(psutil.virtual_memory().available)
    for limit, used in zip(_cgroup_files("memory.max"), _cgroup_files("memory.current"), strict=False):
        if limit.isdigit() and used.isdigit():
            available = min(available, max(0, int(limit) - int(used)))
    return available


def total_memory_bytes() -> int:
    """Memory of the machine, or of the control group where that has less."""
    limits = [int(limit) for limit in _cgroup_files("memory.max") if limit.isdigit()]
    return min([int(psutil.virtual_memory().total), *limits])


def _cgroup_files(name: str) -> list[str]:
    line = next((row for row in _read(Path("/proc/self/cgroup")).splitlines() if row.startswith("0::")), "0::/")
    place = _CGROUP / line[3:].lstrip("/")
    return [text for folder in _up_to(place, _CGROUP) if (text := _read(folder / name))]


def _up_to(place: Path, top: Path) -> Iterable[Path]:
    yield place
    while place not in (top, place.parent):
        place = place.parent
        yield place


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
