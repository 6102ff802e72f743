"""Looks at the machine when asked, and never raises. Costs nothing while nobody asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.machine.memory import Memory
from app.machine.paced import or_none
from app.machine.processor import CoreLoads, Processor
from app.machine.records import ModelFacts
from app.machine.sample import MachineSample

WORKING_SHARE = 0.1
"""Of a core: who takes less has only looked whether there is work."""


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
