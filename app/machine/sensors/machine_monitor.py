"""Samples of the machine, taken on request. Nothing here raises."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.machine.sensors.cached_reading import CachedReading, Rate, or_none
from app.machine.sensors.delays import WORKING_SHARE, CoreWaits, DiskStalls, QuotaWatch
from app.machine.sensors.energy import EnergyMeter
from app.machine.sensors.page_faults import DiskRate
from app.machine.sensors.processor import CoreLoads, Processor
from app.machine.sensors.records import ModelFacts
from app.machine.sensors.sample import MachineSample
from app.machine.sensors.thread_cpus import ThreadState, ThreadStates

MEMORY_PERIOD_S = 0.9
AVAILABLE_PERIOD_S = 1.9
"""Period of the free memory, for which the files of all control groups are read."""
_MAX_STATUS_BYTES = 1 << 16
_LONGEST_INTERVAL_S = 5.0
"""Seconds after which the work of threads since the last count would mislead."""


class MachineMonitor:
    """Takes samples of the machine.

    Args:
        available: returns available memory in bytes; None to ask the source.
        engine_threads: returns the system's numbers of the threads that compute.
    """

    def __init__(
        self,
        source: Any = None,
        sysfs: Path = Path("/sys"),
        procfs: Path = Path("/proc"),
        available: Callable[[], int] | None = None,
        engine_threads: Callable[[], Collection[int]] = tuple,
    ) -> None:
        if source is None:
            import psutil as source  # a module import would delay the first frame
        self._source = source
        self._engine_threads = engine_threads
        self._available = CachedReading(
            available or (lambda: int(source.virtual_memory().available)), AVAILABLE_PERIOD_S
        )
        self._loads = CoreLoads(source)
        self._processor = Processor(source, sysfs, procfs)
        # only these files tell allocated memory from mapped files
        process_directory = procfs / "self"
        self._status = process_directory / "status"
        process = or_none(lambda: source.Process())
        self._threads = ThreadStates(process_directory / "task", process)
        self._disk = DiskRate(process_directory / "io")
        self._disk_stalls = DiskStalls(procfs / "pressure" / "io")
        self._swap: Any = None
        self._swapped_in = Rate(lambda: float(self._swap.sin))
        self._core_waits = CoreWaits(engine_threads, process_directory / "task")
        self._quota = QuotaWatch(procfs.parent)
        self._energy = EnergyMeter(sysfs)
        self._allocated = CachedReading(self._read_allocated, MEMORY_PERIOD_S)
        self._set_facts(None)
        self._thread_states: dict[int, ThreadState] = {}
        """State of each thread at the last count of working threads."""
        self._counted_s = float("-inf")
        self._last_s: float | None = None

    def _set_facts(self, facts: ModelFacts | None) -> None:
        self._facts = facts
        if facts is None:
            self._weights: CachedReading[int] = CachedReading(lambda: None, MEMORY_PERIOD_S)
            self._kv: CachedReading[int] = CachedReading(lambda: None, MEMORY_PERIOD_S)
        else:
            self._weights = CachedReading(facts.resident_weight_bytes, MEMORY_PERIOD_S)
            self._kv = CachedReading(facts.resident_kv_bytes, MEMORY_PERIOD_S)

    def sample(
        self, now_s: float, facts: ModelFacts | None, interface_share: float | None
    ) -> MachineSample:
        """Look at everything once, as ``sample_load`` and the memory."""
        load = self.sample_load(now_s, interface_share)
        if facts is not self._facts:
            self._set_facts(facts)
        weights = self._weights.get(now_s)
        kv = self._kv.get(now_s)
        working = or_none(lambda: self._working_threads(now_s))
        return replace(
            load,
            weights_resident_bytes=weights,
            kv_resident_bytes=kv,
            own_bytes=self._own_bytes(self._allocated.get(now_s), weights or 0, kv or 0),
            available_bytes=self._available.get(now_s),
            threads_working=None if working is None else len(working),
            engine_cpus=self._engine_cpus(working or ()),
        )

    def sample_load(self, now_s: float, interface_share: float | None) -> MachineSample:
        """Look at what may disturb a reply; loads and rates speak for the time since the last call.

        It costs little, since every reply is watched: 1.2 ms (0.12 % of a core) on a busy Xeon of
        2.6 GHz with 15 threads, the mean of 600 samples by time.thread_time.
        """
        if self._last_s is not None:
            interval_s = now_s - self._last_s
        else:
            interval_s = 0.0
        self._last_s = now_s
        core_loads: tuple[float, ...] = ()
        others_cores = None
        stolen_cores = None
        n_allowed = None
        if (loads := or_none(lambda: self._loads.since_before(interval_s))) is not None:
            core_loads = loads.cores
            others_cores = loads.others_cores
            stolen_cores = loads.stolen_cores
            n_allowed = loads.n_allowed
        processor = self._processor
        clock_ghz, most_clock_ghz = processor.clock_ghz(now_s, core_loads)
        self._swap = or_none(lambda: self._source.swap_memory())
        quota = or_none(lambda: self._quota.since_last(now_s))
        rates = self._disk, self._disk_stalls, self._swapped_in
        disk_bytes, disk_stalls, swapped_in = (rate.since_last(now_s) for rate in rates)
        if interval_s <= 0:
            disk_bytes = disk_stalls = swapped_in = quota = None
        return MachineSample(
            at_s=now_s,
            interval_s=interval_s,
            core_loads=core_loads,
            n_allowed_cores=n_allowed,
            others_cores=others_cores,
            stolen_cores=stolen_cores,
            clock_ghz=clock_ghz,
            most_clock_ghz=most_clock_ghz,
            core_clocks_ghz=processor.core_clocks_ghz(now_s),
            temperature_c=processor.temperature_c.get(now_s),
            throttled=processor.throttled(now_s),
            clock_limit=processor.clock_limit.get(now_s),
            governor=processor.governor.get(now_s),
            battery=processor.battery.get(now_s),
            swap_used_bytes=or_none(self._swap_used_bytes),
            disk_bytes_per_s=disk_bytes,
            disk_stall_share=disk_stalls,
            swapped_in_bytes_per_s=swapped_in,
            waiting_share=or_none(lambda: self._core_waits.largest_share(interval_s)),
            quota=quota,
            energy=or_none(lambda: self._energy.read(now_s)),
            interface_share=interface_share,
        )

    def forget_rates(self) -> None:
        """Start again after a pause; averages over a long pause would mislead."""
        self._last_s = None
        self._processor.forget_throttles()

    def _working_threads(self, now_s: float) -> list[int] | None:
        """Return the numbers of the threads that worked since the last call."""
        last_states = self._thread_states
        interval_s = now_s - self._counted_s
        self._counted_s = now_s
        self._thread_states = self._threads.read()
        if not last_states or not 0 < interval_s <= _LONGEST_INTERVAL_S:
            return None
        working = []
        for number, state in self._thread_states.items():
            last_spent_s = last_states.get(number, ThreadState(0.0)).spent_s
            if state.spent_s - last_spent_s >= WORKING_SHARE * interval_s:
                working.append(number)
        return working

    def _engine_cpus(self, working: Collection[int]) -> tuple[int, ...]:
        """Return the CPUs of the working threads that compute."""
        computing = self._engine_threads()
        cpus = {self._thread_states[number].cpu for number in working if number in computing}
        return tuple(sorted(cpu for cpu in cpus if cpu is not None))

    def _own_bytes(self, allocated: int | None, weights: int, kv: int) -> int | None:
        """Return allocated memory without the KV cache and copied weights."""
        if allocated is None:
            return None
        if self._facts is not None and self._facts.weights_mode == "huge":
            copied = weights
        else:
            copied = 0
        return max(0, allocated - copied - kv)

    def _swap_used_bytes(self) -> int | None:
        if self._swap.total:
            return int(self._swap.used)
        return None

    def _read_allocated(self) -> int | None:
        """Return allocated memory; None if the system does not tell it from mapped files."""
        with self._status.open(encoding="ascii", errors="replace") as file:
            lines = file.read(_MAX_STATUS_BYTES).splitlines()
        fields = {
            line.split(":")[0]: line for line in lines if line.startswith(("RssAnon:", "RssShmem:"))
        }
        if len(fields) != 2:
            return None
        return sum(1024 * int(line.split()[1]) for line in fields.values())
