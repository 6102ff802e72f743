"""Instruction level and speed of the engine on this machine, and the memory that a model could use.

Runs in the thread that owns the engine. Nothing here raises for a machine on which the engine
cannot run.
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
"""The type that most models for small machines are made of."""
BUSY_SHARE = 0.7
"""Of the best memory speed."""
LEAST_FREE_BYTES = 700 << 20
"""Measuring takes memory for a moment; where less than this is free, it would push a model out."""

Report = Callable[[Any], None]


@record
class EngineReadings:
    """Readings of the engine; ``error`` instead of the rest where it cannot run."""

    level: str = ""
    threads: int = 0
    read_gbps: float | None = None
    prefill_gops: float | None = None
    """Multiplications of the Q4_K kernel that reads prompts, in billions a second."""
    cache: str = ""
    """Directory of compiled kernels; "" where none is kept."""
    cache_bytes: int | None = None
    stale_bytes: int = 0
    """Of kernels that older versions left."""
    features_named: bool = False
    """Whether the environment names the instruction set instead of the processor."""
    error: str = ""
    best_gbps: float | None = None
    """The best that reading memory was ever measured at here, in quiet times; None for never."""
    is_quiet: bool = True
    """Whether other programs left the machine alone meanwhile."""

    @property
    def busy_words(self) -> str:
        """How busy the machine is now; "" where it is quiet."""
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
    """Measure memory and kernels; an engine that cannot run is a reading as well."""
    try:
        from engine import LEVEL, MOST_THREADS, Crew
        from engine.machine import host
        from engine.machine.code import CACHE_DIRECTORY
        from engine.measure.speed_probe import measure_rates

        threads = threads or min(MOST_THREADS, host.cores().default_threads)
        rates = known = fitting.MachineRates()
        conditions = Conditions()
        watch = watch_machine()
        if host.available_memory_bytes() >= LEAST_FREE_BYTES:
            with nullcontext(crew) if crew is not None else closing(Crew()) as used:
                watch.begin()
                rates = measure_rates(
                    used, dict.fromkeys(quants), threads, prefill_threads or threads, progress
                )
                conditions = watch.end()
            known = remember_rates(threads, rates, conditions.is_quiet)
        cache_bytes, stale_bytes = _cache_sizes(CACHE_DIRECTORY)
    except (
        Exception
    ) as error:  # no compiler, no memory, a processor no one tried: the doctor reports it
        return EngineReadings(
            error=clean_line(f"{type(error).__name__}: {error}", 160)
        ), fitting.MachineRates()
    readings = EngineReadings(
        level=LEVEL,
        threads=threads,
        read_gbps=rates.read_gbps,
        prefill_gops=(known if known.prefill_gops else rates).prefill_gops.get(COMMON_TYPE),
        cache=str(CACHE_DIRECTORY or ""),
        cache_bytes=cache_bytes,
        stale_bytes=stale_bytes,
        features_named=any(name in os.environ for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")),
        best_gbps=known.read_gbps,
        is_quiet=conditions.is_quiet,
    )
    # Advice goes by the best: it must not change with the load of the moment.
    if known.read_gbps or not rates.read_gbps:
        return readings, known
    return readings, fitting.MachineRates(max(TYPICAL_READ_GBPS, rates.read_gbps))


def memory_for_models() -> fitting.MachineMemory:
    """Read the machine's memory, with what this process holds counted as available: it is what a
    model would use."""
    import psutil

    memory = fitting.machine_memory()
    held_bytes = 0
    with suppress(psutil.Error, OSError):  # without /proc no one tells
        own = psutil.Process().memory_info()
        held_bytes = max(0, own.rss - getattr(own, "shared", own.rss))
    return fitting.MachineMemory(
        memory.total_bytes, min(memory.total_bytes, memory.available_bytes + held_bytes)
    )


def _cache_sizes(directory: Path | None) -> tuple[int | None, int]:
    """Return the bytes of this version's kernels, and of those that other versions left next to
    them."""
    if directory is None:
        return None, 0
    others = [place for place in directory.parent.glob("kernels-*") if place != directory]
    return _size_of(directory), sum(map(_size_of, others))


def _size_of(directory: Path) -> int:
    total = 0
    for file in directory.rglob("*"):
        with suppress(OSError):
            total += file.lstat().st_size
    return total
