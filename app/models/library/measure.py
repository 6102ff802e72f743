"""Measurement of the engine on this machine, and the memory that a model could use.

It runs in the thread that owns the engine, and does not raise if the engine cannot run.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

from app.machine.sensors.tuning_conditions import Conditions, watch_machine
from app.models.library.rates import TYPICAL_READ_GBPS, remember_rates
from app.text.clean_text import clean_line
from app.text.record import record
from engine import Crew
from engine.measure import fit as fitting

COMMON_TYPE = "Q4_K"
"""Usual type of models for small machines."""
BUSY_SHARE = 0.7
"""Share of the best memory speed below which the machine counts as busy."""
LEAST_FREE_BYTES = 700 << 20
"""Free memory that a measurement needs. With less, it would push a loaded model out of memory."""

Report = Callable[[Any], None]


@record
class EngineReadings:
    """Readings of the engine, or only ``error`` if it cannot run."""

    level: str = ""
    threads: int = 0
    read_gbps: float | None = None
    prefill_gops: float | None = None
    """Billions of multiplications per second by the Q4_K kernel that reads prompts."""
    cache: str = ""
    """Directory of compiled kernels; "" if there is none."""
    cache_bytes: int | None = None
    stale_bytes: int = 0
    """Size of kernels of other versions."""
    features_named: bool = False
    """Whether environment variables set the instruction set."""
    awaits_faster_code: bool = False
    """Whether better code for the processor is built in idle time, for the next start."""
    is_built_here: bool = False
    """Whether the code in use was built in idle time."""
    error: str = ""
    best_gbps: float | None = None
    """Best read speed of memory in quiet times; None if it was never measured."""
    is_quiet: bool = True
    """Whether other programs were quiet during the measurement."""

    @property
    def busy_words(self) -> str:
        """How busy the machine is; "" if it is quiet."""
        return busy_words(self.read_gbps, self.best_gbps, self.is_quiet)


def busy_words(now_gbps: float | None, best_gbps: float | None, is_quiet: bool) -> str:
    """Return how busy the machine is, such as "busy: 40 % of the usual speed"; empty if other
    programs leave it alone."""
    if now_gbps and best_gbps:
        share = now_gbps / best_gbps
    else:
        share = 1.0
    if share < BUSY_SHARE:
        return f"busy: {max(10, round(100 * share))} % of the usual speed"
    if is_quiet:
        return ""
    return "busy: other programs are running"


def measure(
    threads: int,
    prefill_threads: int,
    quants: Iterable[str],
    progress: Report | None,
    crew: Crew | None = None,
) -> tuple[EngineReadings, fitting.MachineRates]:
    """Measure memory and kernels. An engine that cannot run gives readings with an error."""
    try:
        from engine import LEVEL, MOST_THREADS, Crew, idle_build
        from engine.machine import host
        from engine.machine.code import CACHE_DIRECTORY
        from engine.machine.packs import choice
        from engine.measure.speed_probe import measure_rates

        threads = threads or min(MOST_THREADS, host.cores().default_threads)
        rates = known_rates = fitting.MachineRates()
        conditions = Conditions()
        watch = watch_machine()
        if host.available_memory_bytes() >= LEAST_FREE_BYTES:
            with nullcontext(crew) if crew is not None else closing(Crew()) as measuring_crew:
                watch.begin()
                rates = measure_rates(
                    measuring_crew,
                    dict.fromkeys(quants),
                    threads,
                    prefill_threads or threads,
                    progress,
                )
                conditions = watch.end()
            known_rates = remember_rates(threads, rates, conditions.is_quiet)
        cache_bytes, stale_bytes = _cache_sizes(CACHE_DIRECTORY)
    except (
        Exception
    ) as error:  # no compiler, no memory, an unknown processor: the doctor reports it
        return EngineReadings(
            error=clean_line(f"{type(error).__name__}: {error}", 160)
        ), fitting.MachineRates()
    readings = EngineReadings(
        level=LEVEL,
        threads=threads,
        read_gbps=rates.read_gbps,
        prefill_gops=(known_rates if known_rates.prefill_gops else rates).prefill_gops.get(
            COMMON_TYPE
        ),
        cache=str(CACHE_DIRECTORY or ""),
        cache_bytes=cache_bytes,
        stale_bytes=stale_bytes,
        features_named=any(name in os.environ for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")),
        awaits_faster_code=idle_build.is_needed(),
        is_built_here=choice().is_built_here,
        best_gbps=known_rates.read_gbps,
        is_quiet=conditions.is_quiet,
    )
    # advice must not change with the current load
    if known_rates.read_gbps or not rates.read_gbps:
        return readings, known_rates
    return readings, fitting.MachineRates(max(TYPICAL_READ_GBPS, rates.read_gbps))


def memory_for_models() -> fitting.MachineMemory:
    """Return the machine's memory. Memory of this process counts as available for a model."""
    import psutil

    memory = fitting.machine_memory()
    process_bytes = 0
    with suppress(psutil.Error, OSError):  # not available without /proc
        memory_info = psutil.Process().memory_info()
        process_bytes = max(0, memory_info.rss - getattr(memory_info, "shared", memory_info.rss))
    return fitting.MachineMemory(
        memory.total_bytes, min(memory.total_bytes, memory.available_bytes + process_bytes)
    )


def _cache_sizes(directory: Path | None) -> tuple[int | None, int]:
    """Return the size of this version's kernels, and of other versions' kernels."""
    if directory is None:
        return None, 0
    other_directories = [path for path in directory.parent.glob("kernels-*") if path != directory]
    return _size_of(directory), sum(map(_size_of, other_directories))


def _size_of(directory: Path) -> int:
    total = 0
    for file in directory.rglob("*"):
        with suppress(OSError):
            total += file.lstat().st_size
    return total
