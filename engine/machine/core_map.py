"""Map of the logical CPUs that are online: which of them share a physical core or a cache, which
are slow by design, and which this process may use.

Like ``topology``, it reads Linux's /sys below a given root and trusts nothing that it finds there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.machine.topology import (
    ROOT,
    efficiency_cores,
    listed_numbers,
    number_of,
    read_text,
)

MOST_CPUS = 1024
"""Limit on the logical CPUs of a map."""
_MOST_CACHES = 8
"""Limit on the caches of a CPU."""


@dataclass(frozen=True)
class LogicalCpu:
    """A logical CPU.

    Attributes:
        number: the system's number.
        core: number of the first logical CPU of its physical core.
        cache: number of the first logical CPU that shares its largest cache.
        cache_level: level of that cache, 0 if unknown.
        clock: index of its clock among the clocks of the machine.
        is_efficiency: whether it is slower by design than others here.
        is_allowed: whether this process may use it.
    """

    number: int
    core: int
    cache: int = 0
    cache_level: int = 0
    clock: int = 0
    is_efficiency: bool = False
    is_allowed: bool = True


@dataclass(frozen=True)
class CoreMap:
    """Logical CPUs that are online.

    Attributes:
        cpus: logical CPUs by cache, fast ones first, then by physical core.
        n_offline: number of CPUs that are switched off.
    """

    cpus: tuple[LogicalCpu, ...] = ()
    n_offline: int = 0

    @property
    def has_two_kinds(self) -> bool:
        """Whether there are both fast and efficiency cores."""
        return len({cpu.is_efficiency for cpu in self.cpus}) == 2


def read_core_map(allowed: Sequence[int], root: Path = ROOT) -> CoreMap:
    """Read the map.

    Args:
        allowed: numbers of the logical CPUs that this process may use.
        root: directory that holds ``sys`` and ``proc``.
    """
    folder = root / "sys/devices/system/cpu"
    online = sorted(set(listed_numbers(read_text(folder / "online"))) or set(allowed))[:MOST_CPUS]
    present = set(listed_numbers(read_text(folder / "present")))
    cores = {cpu: _core_of(folder, cpu, online) for cpu in online}
    caches = _caches(folder, cores)
    clocks = _clocks(folder, online)
    slow = efficiency_cores(sorted(set(cores.values())), root)
    cpus = [
        LogicalCpu(
            number=cpu,
            core=cores[cpu],
            cache=caches[cpu][1],
            cache_level=caches[cpu][0],
            clock=clocks[cpu],
            is_efficiency=cores[cpu] in slow,
            is_allowed=cpu in allowed,
        )
        for cpu in online
    ]
    cpus.sort(key=lambda cpu: (cpu.cache, cpu.is_efficiency, cpu.core, cpu.number))
    return CoreMap(tuple(cpus), len(present.difference(online)))


def _core_of(folder: Path, cpu: int, online: Sequence[int]) -> int:
    """Return the first online CPU of the same physical core."""
    topology = folder / f"cpu{cpu}" / "topology"
    text = read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list")
    return _first_of(text, cpu, online)


def _first_of(text: str, cpu: int, online: Iterable[int]) -> int:
    """Return the first online CPU of a list that names ``cpu``; ``cpu`` if the list does not."""
    members = set(listed_numbers(text)).intersection(online)
    if cpu in members:
        return min(members)
    return cpu


def _caches(folder: Path, cores: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Return level and first CPU of the largest cache of each CPU.

    If no two physical cores share a cache, the CPUs of a package count as a group.
    """
    caches = {cpu: _largest_cache(folder, cpu, cores) for cpu in cores}
    n_cores_of: dict[tuple[int, int], set[int]] = {}
    for cpu, cache in caches.items():
        n_cores_of.setdefault(cache, set()).add(cores[cpu])
    if any(len(members) > 1 for members in n_cores_of.values()):
        return caches
    packages: dict[str, int] = {}
    for cpu in cores:
        packages.setdefault(_package(folder, cpu), cpu)
    return {cpu: (0, packages[_package(folder, cpu)]) for cpu in cores}


def _largest_cache(folder: Path, cpu: int, online: Iterable[int]) -> tuple[int, int]:
    largest = 0, cpu
    for index in range(_MOST_CACHES):
        cache = folder / f"cpu{cpu}" / "cache" / f"index{index}"
        level = number_of(read_text(cache / "level")) or 0
        shared = read_text(cache / "shared_cpu_list")
        if level > largest[0] and shared:
            largest = level, _first_of(shared, cpu, online)
    return largest


def _package(folder: Path, cpu: int) -> str:
    return read_text(folder / f"cpu{cpu}" / "topology" / "physical_package_id")


def _clocks(folder: Path, online: Sequence[int]) -> dict[int, int]:
    """Return the index of each CPU's clock. Without groups of CPUs with one clock, each CPU has
    its own."""
    clocks = dict(zip(online, range(len(online)), strict=True))
    policies = [
        (number, policy)
        for policy in (folder / "cpufreq").glob("policy[0-9]*")
        if (number := number_of(re.sub(r"^policy", "", policy.name))) is not None
    ]
    for index, (_, policy) in enumerate(sorted(policies)[:MOST_CPUS]):
        text = read_text(policy / "related_cpus").replace(" ", ",")
        clocks.update(dict.fromkeys(set(listed_numbers(text)).intersection(online), index))
    return clocks
