"""Time that Linux makes this process wait: for a core, for its CPU quota, and for disks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from app.machine.sensors.cached_reading import CachedReading, Rate
from app.text.record import record

WORKING_SHARE = 0.1
"""Share of a core from which a thread counts as working."""
_QUOTA_PERIOD_S = 10.0
_NS = 1e-9
_MICRO = 1e-6
_MAX_STAT_CHARS = 4096


class CoreWaits:
    """Waiting of the threads that compute for a core.

    Args:
        engine_threads: returns the system's numbers of the threads that compute.
    """

    def __init__(
        self,
        engine_threads: Callable[[], Collection[int]],
        tasks: Path = Path("/proc/self/task"),
    ) -> None:
        self._engine_threads = engine_threads
        self._tasks = tasks
        self._last: dict[int, tuple[int, int]] = {}
        """Nanoseconds of computing and of waiting by thread."""

    def largest_share(self, interval_s: float) -> float | None:
        """Return the largest share of the time that a working thread has waited since the last
        call; None at first, and where the system does not count.
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

    def _read(self) -> dict[int, tuple[int, int]]:
        times = {}
        for thread in self._engine_threads():
            try:
                # pathlib takes three times as long
                with open(f"{self._tasks}/{thread}/schedstat", "rb") as file:
                    computed, waited, _ = file.read(_MAX_STAT_CHARS).split()
                times[thread] = int(computed), int(waited)
            except (OSError, ValueError):  # the thread has ended
                continue
        return times


@record
class QuotaUse:
    """CPU quota of a control group, and how much it holds back."""

    cores: float
    """Number of cores that it allows."""
    spent_share: float
    """Share of its periods in which it was used up, 0 to 1."""


class QuotaWatch:
    """Watch of the CPU quotas of this process's control groups."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._has_quota = CachedReading(lambda: bool(self._read()), _QUOTA_PERIOD_S)
        self._last: _QuotaCounts | None = None

    def since_last(self, now_s: float) -> QuotaUse | None:
        """Return the tightest quota and its use since the last call; None at first, and without a
        quota.
        """
        last = self._last
        self._last = None
        if self._has_quota.get(now_s):
            self._last = min(self._read(), key=lambda counts: counts.cores, default=None)
        if self._last is None or last is None:
            return None
        n_periods = self._last.n_periods - last.n_periods
        n_spent = self._last.n_spent - last.n_spent
        share = 0.0
        if n_periods > 0:
            share = min(1.0, max(0.0, n_spent / n_periods))
        return QuotaUse(self._last.cores, share)

    def _read(self) -> list[_QuotaCounts]:
        """Return the counts of each limited group, of version 2 and 1."""
        # a module import would delay the first frame
        from engine.machine.topology import cgroup_files

        old_names = "cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.stat"
        old = (cgroup_files(name, self._root, "cpu") for name in old_names)
        new = (cgroup_files(name, self._root) for name in ("cpu.max", "cpu.stat"))
        groups = [
            *zip(*new, strict=False),
            *((f"{quota} {period}", stat) for quota, period, stat in zip(*old, strict=False)),
        ]
        return [counts for limit, stat in groups if (counts := _counts_of(limit, stat))]


def _counts_of(limit: str, stat: str) -> _QuotaCounts | None:
    """Return the counts of a group; None if it has no limit."""
    words = limit.split()
    if len(words) != 2 or not all(word.isdigit() and int(word) > 0 for word in words):
        return None
    cores = int(words[0]) / int(words[1])
    return _QuotaCounts(cores, _field(stat, "nr_periods"), _field(stat, "nr_throttled"))


@record
class _QuotaCounts:
    cores: float
    n_periods: int
    n_spent: int


def _field(text: str, name: str) -> int:
    """Return a number of a file with a name and a number in each line; 0 if it is missing."""
    for row in text[:_MAX_STAT_CHARS].splitlines():
        label, _, value = row.partition(" ")
        if label == name and value.isdigit():
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
