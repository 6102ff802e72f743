"""Time that Linux makes this process wait: for a core, for its CPU quota, and for disks."""

from __future__ import annotations

import os
from pathlib import Path

from app.machine.sensors.cached_reading import CachedReading, Rate

WORKING_SHARE = 0.1
"""Share of a core from which a thread counts as working."""
_QUOTA_PERIOD_S = 10.0
_NS = 1e-9
_MICRO = 1e-6
_MOST_THREADS = 512
_MAX_STAT_CHARS = 4096


class CoreWaits:
    """Waiting of this process's threads for a core."""

    def __init__(self, tasks: Path = Path("/proc/self/task")) -> None:
        self._tasks = tasks
        self._last: dict[str, tuple[int, int]] = {}
        """Nanoseconds of computing and of waiting by thread."""

    def largest_share(self, interval_s: float) -> float | None:
        """Return the largest share of the time that a working thread has waited since the last
        call; None at first, and where the system does not count.

        The main thread does not count: it draws, and never computes.
        """
        last = self._last
        self._last = self._read()
        if not last or interval_s <= 0:
            return None
        shares = []
        for thread, (computed_ns, waited_ns) in self._last.items():
            if thread not in last:
                continue
            computed_s = _NS * (computed_ns - last[thread][0])
            waited_s = _NS * (waited_ns - last[thread][1])
            if computed_s + waited_s >= WORKING_SHARE * interval_s:
                shares.append(min(1.0, max(0.0, waited_s / interval_s)))
        return max(shares, default=0.0)

    def _read(self) -> dict[str, tuple[int, int]]:
        main = str(os.getpid())
        times = {}
        for task in list(self._tasks.iterdir())[:_MOST_THREADS]:
            if task.name == main:
                continue
            try:
                computed, waited, _ = (task / "schedstat").read_text("ascii").split()
                times[task.name] = int(computed), int(waited)
            except (OSError, ValueError):  # the thread has ended
                continue
        return times


class QuotaWaits:
    """CPU time that the quotas of control groups withhold from this process."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._has_quota = CachedReading(self._find_quota, _QUOTA_PERIOD_S)
        self._withheld = Rate(self._withheld_s)

    def share(self, now_s: float, n_threads: int) -> float | None:
        """Return the share of time withheld from each thread since the last call; None without a
        quota.
        """
        if not self._has_quota.get(now_s):
            return None
        rate = self._withheld.since_last(now_s)
        if rate is None:
            return None
        return min(1.0, rate / max(1, n_threads))

    def _find_quota(self) -> bool:
        from engine.machine.topology import cpu_quota  # a module import would delay the first frame

        return cpu_quota(self._root) is not None

    def _withheld_s(self) -> float:
        """Return the seconds withheld so far, from groups of both versions."""
        from engine.machine.topology import cgroup_files

        total_s = 0.0
        for controller, name, unit_s in (
            ("", "throttled_usec", _MICRO),
            ("cpu", "throttled_time", _NS),
        ):
            for text in cgroup_files("cpu.stat", self._root, controller):
                total_s += unit_s * _field(text, name)
        return total_s


def _field(text: str, name: str) -> int:
    for row in text[:_MAX_STAT_CHARS].splitlines():
        label, _, value = row.partition(" ")
        if label == name:
            return int(value)
    return 0


class DiskStalls(Rate):
    """Share of time in which a program of this machine waited for a disk."""

    def __init__(self, source: Path = Path("/proc/pressure/io")) -> None:
        super().__init__(self._read_s)
        self._source = source

    def _read_s(self) -> float:
        for row in self._source.read_text("ascii").splitlines():
            if row.startswith("some "):
                return _MICRO * int(row.rpartition("total=")[2])
        raise ValueError
