"""Looks at the machine when asked, and never raises. Costs nothing while nobody asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.machine.paced import Paced, or_none
from app.machine.page_faults import DiskRate
from app.machine.processor import CoreLoads, Processor
from app.machine.records import ModelFacts
from app.machine.sample import MachineSample

WORKING_SHARE = 0.1
"""Of a core: who takes less has only looked whether there is work."""
MEMORY_PERIOD_S = 0.9
_MAX_STATUS_BYTES = 1 << 16


class MachineMonitor:
    """Takes one sample after the other. ``available``: memory in bytes; None for the source's figure."""

    def __init__(
        self,
        source: Any = None,
        sysfs: Path = Path("/sys"),
        procfs: Path = Path("/proc"),
        available: Callable[[], int] | None = None,
    ) -> None:
        if source is None:
            import psutil as source  # not with the module: the first frame would wait for it
        process = or_none(lambda: source.Process())
        self._loads = CoreLoads(source)
        self._processor = Processor(source, sysfs)
        self._memory = Memory(source, process, procfs / "self", available)
        self._threads = Threads(process)
        self._before_s: float | None = None

    def sample(self, now_s: float, facts: ModelFacts | None, interface_share: float | None) -> MachineSample:
        """Look at everything once; loads and rates speak for the time since the last call."""
        interval_s = now_s - self._before_s if self._before_s is not None else 0.0
        self._before_s = now_s
        loads = or_none(lambda: self._loads.since_before(interval_s))
        processor, memory = self._processor, self._memory
        clock_ghz, most_clock_ghz = processor.clock_ghz(now_s, loads.cores if loads else ())
        weights, kv = memory.of_model(facts, now_s)
        rss, own = memory.of_program(now_s, weights, kv)
        working, threads = self._threads.working_of(interval_s)
        return MachineSample(
            at_s=now_s,
            interval_s=interval_s,
            core_loads=loads.cores if loads else (),
            others_cores=loads.others_cores if loads else None,
            clock_ghz=clock_ghz,
            most_clock_ghz=most_clock_ghz,
            temperature_c=processor.temperature_c.get(now_s),
            throttled=processor.throttled(now_s),
            governor=processor.governor.get(now_s),
            battery=processor.battery.get(now_s),
            weights_resident_bytes=weights,
            kv_resident_bytes=kv,
            own_bytes=own,
            rss_bytes=rss,
            available_bytes=memory.available_bytes(),
            swap_used_bytes=memory.swap_used_bytes(),
            disk_bytes_per_s=memory.disk_bytes_per_s(now_s, interval_s),
            threads_working=working,
            threads=threads,
            interface_share=interface_share,
        )

    def forget_rates(self) -> None:
        """Begin anew after a pause: a rate over minutes nobody watched would mislead."""
        self._before_s = None
        self._processor.forget_throttles()


class Threads:
    """Counts threads by the processor time they took between two readings."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._before: dict[int, float] = {}

    def working_of(self, interval_s: float) -> tuple[int | None, int | None]:
        """Return threads working and threads existing; the first is None at the first call."""
        threads = or_none(lambda: self._process.threads())
        if threads is None:
            return None, None
        spent_s = {thread.id: thread.user_time + thread.system_time for thread in threads}
        before, self._before = self._before, spent_s
        if not before or interval_s <= 0:
            return None, len(spent_s)
        took_s = (seconds - before.get(number, 0.0) for number, seconds in spent_s.items())
        return sum(seconds >= WORKING_SHARE * interval_s for seconds in took_s), len(spent_s)


class Memory:
    """Readings of memory. ``own``: the system's files on this process, which alone tell allocated memory from files."""

    def __init__(self, source: Any, process: Any, own: Path, available: Callable[[], int] | None = None) -> None:
        self._source, self._process, self._status = source, process, own / "status"
        self._available = available or (lambda: int(source.virtual_memory().available))
        self._facts: ModelFacts | None = None
        self._disk = DiskRate(own / "io")
        self._resident = Paced(self._read_resident, MEMORY_PERIOD_S)
        self._weights = Paced(self._read_weights, MEMORY_PERIOD_S)
        self._kv = Paced(self._read_kv, MEMORY_PERIOD_S)

    def of_model(self, facts: ModelFacts | None, now_s: float) -> tuple[int | None, int | None]:
        """Return the bytes of weights and of the KV cache that lie in memory."""
        if facts is not self._facts:
            self._facts = facts
            self._weights, self._kv = Paced(self._read_weights, MEMORY_PERIOD_S), Paced(self._read_kv, MEMORY_PERIOD_S)
        return self._weights.get(now_s), self._kv.get(now_s)

    def of_program(self, now_s: float, weights: int | None, kv: int | None) -> tuple[int | None, int | None]:
        """Return the resident bytes of the process, and what is left of them without weights, files and cache."""
        resident = self._resident.get(now_s)
        if resident is None:
            return None, None
        total, not_of_files = resident
        if not_of_files is None:
            return total, None
        copied = (weights or 0) if self._facts is not None and self._facts.weights_mode == "huge" else 0
        return total, max(0, not_of_files - copied - (kv or 0))

    def available_bytes(self) -> int | None:
        """Return the memory that is available without swapping others out."""
        return or_none(self._available)

    def swap_used_bytes(self) -> int | None:
        """Return how much is swapped out, by all programs; None without swap."""
        swap = or_none(lambda: self._source.swap_memory())
        return int(swap.used) if swap is not None and swap.total else None

    def disk_bytes_per_s(self, now_s: float, interval_s: float) -> float | None:
        """Return what came from disk since the last call, a second."""
        rate = self._disk.since_last(now_s)
        return rate if interval_s > 0 else None

    def _read_weights(self) -> int | None:
        return self._facts.resident_weight_bytes() if self._facts is not None else None

    def _read_kv(self) -> int | None:
        return self._facts.resident_kv_bytes() if self._facts is not None else None

    def _read_resident(self) -> tuple[int, int | None]:
        """Return all resident bytes, and those that the program allocated; None where files' are not told from them."""
        return int(self._process.memory_info().rss), or_none(self._read_allocated)

    def _read_allocated(self) -> int | None:
        with self._status.open(encoding="ascii", errors="replace") as file:
            lines = file.read(_MAX_STATUS_BYTES).splitlines()
        found = {line.split(":")[0]: line for line in lines if line.startswith(("RssAnon:", "RssShmem:"))}
        if len(found) != 2:
            return None
        return sum(1024 * int(line.split()[1]) for line in found.values())
