"""CPUs that this process may use, grouped by core and by speed, and the quota of its control group.

Reads Linux's /sys and /proc below a given root, so tests can use the recorded tree of another
machine. On other systems every CPU counts as a core of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
SLOW_SHARE = 0.8
"""Share of the fastest core's frequency below which a core is an efficiency core.

Differences of boost frequencies are smaller.
"""
_MOST_CHARACTERS = 1 << 20
"""Limit on what is read of a file; the longest, /proc/cpuinfo, has about 1.5 kB for each CPU."""
_MOST_DIGITS = 15
_MOST_RANGES = 256
"""Limit on the ranges of a list of CPUs."""


@dataclass(frozen=True)
class Cores:
    """Processors this process may use.

    Attributes:
        logical: numbers of all allowed logical CPUs: fast cores first, then efficiency cores, then
            siblings. Linux 6.5 places threads in the same order on hybrid processors: an idle
            core of lower priority comes before the sibling of a busy one.
        n_physical: number of physical cores of the allowed CPUs, efficiency cores included.
        quota: whole CPUs granted by the control group, None without a limit.
        n_efficiency: number of those cores that are slower by design.
        n_sockets: number of packages of the allowed CPUs.
        name: model name of the processor, "" if unknown; untrusted text.
    """

    logical: tuple[int, ...]
    n_physical: int
    quota: int | None
    n_efficiency: int = 0
    n_sockets: int = 1
    name: str = ""

    @property
    def n_fast(self) -> int:
        """Physical cores that are not efficiency cores."""
        return self.n_physical - self.n_efficiency

    @property
    def n_siblings(self) -> int:
        """Number of logical CPUs beyond the first of each core."""
        return len(self.logical) - self.n_physical

    @property
    def default_threads(self) -> int:
        """Threads to use: one per fast core, at most the quota.

        Siblings share one memory port and are left out.
        """
        return max(1, min(self.n_fast, self.quota or self.n_fast))

    @property
    def most_threads(self) -> int:
        """Limit on threads: the number of allowed logical CPUs.

        More threads would stall at spinning barriers.
        """
        return max(1, len(self.logical))

    def kind(self, n_threads: int) -> str:
        """Kind of CPU that the last of ``n_threads`` threads runs on: "core", "efficiency core" or
        "sibling"."""
        if n_threads <= self.n_fast:
            return "core"
        if n_threads <= self.n_physical:
            return "efficiency core"
        return "sibling"

    @property
    def identity(self) -> str:
        """Line that is equal for two machines only if thread counts tuned on one suit the other."""
        return (
            f"{self.name or 'unknown CPU'}, {self.n_fast}+{self.n_efficiency} cores, "
            f"{self.n_siblings} siblings, "
            f"{self.n_sockets} sockets, quota {self.quota or 'none'}"
        )


def read_cores(allowed: Sequence[int], root: Path = ROOT) -> Cores:
    """Group the allowed CPUs by core and by speed, and read the quota.

    Args:
        allowed: numbers of logical CPUs, ascending.
        root: directory that holds ``sys`` and ``proc``.
    """
    cpus = root / "sys/devices/system/cpu"
    first_of_core: dict[str, int] = {}
    siblings: list[int] = []
    for cpu in allowed:
        topology = cpus / f"cpu{cpu}" / "topology"
        key = (
            read_text(topology / "core_cpus_list")
            or read_text(topology / "thread_siblings_list")
            or str(cpu)
        )
        if key in first_of_core:
            siblings.append(cpu)
        else:
            first_of_core[key] = cpu
    physical = list(first_of_core.values())
    slow = efficiency_cores(physical, root)
    sockets = {
        read_text(cpus / f"cpu{cpu}" / "topology" / "physical_package_id") for cpu in physical
    }
    ordered = sorted(physical, key=lambda cpu: cpu in slow) + sorted(
        siblings, key=lambda cpu: cpu in slow
    )
    quota = cpu_quota(root)
    return Cores(
        tuple(ordered), len(physical), quota, len(slow), max(1, len(sockets)), cpu_name(root)
    )


def cpu_quota(root: Path = ROOT) -> int | None:
    """Return the CPUs granted by this process's control groups; None without a limit.

    Groups of version 2 and 1 count, at all levels.
    """
    limits = [*map(_quota, cgroup_files("cpu.max", root))]
    periods = cgroup_files("cpu.cfs_period_us", root, "cpu")
    quotas = cgroup_files("cpu.cfs_quota_us", root, "cpu")
    limits += [_quota(f"{quota} {period}") for quota, period in zip(quotas, periods, strict=False)]
    known_limits = [limit for limit in limits if limit is not None]
    if known_limits:
        return min(known_limits)
    return None


def cgroup_files(name: str, root: Path = ROOT, controller: str = "") -> list[str]:
    """Texts of one file in this process's control group and all groups above it, innermost first.

    Args:
        controller: its name in version 1; "" for the single tree of version 2.
    """
    group = _cgroup_path(root, controller)
    if group is None:
        return []
    top = root / "sys/fs/cgroup" / controller
    return [
        text
        for folder in _up_to(top / group.lstrip("/"), top)
        if (text := read_text(folder / name))
    ]


def cpu_name(root: Path = ROOT) -> str:
    """Return the model name of the first processor, in one line; "" if the system does not tell."""
    for line in read_text(root / "proc/cpuinfo").splitlines():
        label, _, value = line.partition(":")
        if label.strip().lower() in ("model name", "cpu model", "hardware") and value.strip():
            return " ".join(value.split())
    return read_text(root / "proc/device-tree/model").replace("\0", "")


def last_cache_bytes(root: Path = ROOT) -> int:
    """Return the size of the first processor's largest cache; 0 if the system does not tell."""
    folders = (root / "sys/devices/system/cpu/cpu0/cache").glob("index*")
    texts = [read_text(folder / "size").strip() for folder in folders]
    return max(
        (size << 10 for text in texts if text.endswith("K") and (size := number_of(text[:-1]))),
        default=0,
    )


def efficiency_cores(physical: Sequence[int], root: Path) -> set[int]:
    """Return the cores that are slower by design; empty if all cores are equal."""
    atoms = {
        cpu
        for kind in ("cpu_atom", "cpu_lowpower")  # Linux lists hybrid Intel cores there
        for cpu in listed_numbers(read_text(root / "sys/devices" / kind / "cpus"))
    }
    slow = {cpu for cpu in physical if cpu in atoms} or _slow_by_figure(physical, root)
    if len(slow) < len(physical):
        return slow
    return set()


def _slow_by_figure(physical: Sequence[int], root: Path) -> set[int]:
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        folder = root / "sys/devices/system/cpu"
        figures = {cpu: number_of(read_text(folder / f"cpu{cpu}" / name)) for cpu in physical}
        known = {cpu: figure for cpu, figure in figures.items() if figure is not None}
        if known and len(known) == len(figures):
            fastest = max(known.values())
            slow = {cpu for cpu, figure in known.items() if figure < SLOW_SHARE * fastest}
            if slow:
                return slow
    return set()


def _quota(text: str) -> int | None:
    words = text.split()
    if len(words) != 2:
        return None
    quota_us = number_of(words[0])
    period_us = number_of(words[1])
    if quota_us is None or period_us is None:
        return None
    return max(1, quota_us // max(1, period_us))


def _cgroup_path(root: Path, controller: str) -> str | None:
    """Return the path of this process's group; "/" if version 2 does not tell."""
    is_group: Callable[[str], bool] = (
        (lambda names: controller in names.split(",")) if controller else (lambda n: not n)
    )
    for row in read_text(root / "proc/self/cgroup").splitlines():
        fields = row.split(":", 2)
        if len(fields) == 3 and is_group(fields[1]):
            return fields[2]
    if controller:
        return None
    return "/"


def _up_to(folder: Path, top: Path) -> Iterable[Path]:
    yield folder
    while folder not in (top, folder.parent):
        folder = folder.parent
        yield folder


def listed_numbers(text: str) -> Iterator[int]:
    """Yield the numbers of a kernel list such as "0-3,8"."""
    for range_text in text.split(",", _MOST_RANGES)[:_MOST_RANGES]:
        first_text, _, last_text = range_text.strip().partition("-")
        first = number_of(first_text)
        last = number_of(last_text or first_text)
        if first is not None and last is not None:
            yield from range(first, min(last, first + 4096) + 1)


def number_of(text: str) -> int | None:
    """Return a number of the system; None if the text is none, or is too long for one."""
    if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
        return int(text)
    return None


def read_text(path: Path) -> str:
    """Return the beginning of a file, without blanks around it; "" if it cannot be read."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_CHARACTERS).strip()
    except (OSError, ValueError):
        return ""
