"""Causes that make a reply slower than usual on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from app.machine.sensors.page_faults import LEAST_DISK_BYTES_PER_S
from app.machine.sensors.sample import MachineSample
from app.machine.sensors.tuning_conditions import QUIET_CORES
from app.text import figures

SLOW_SHARE = 0.85
"""Share of the usual speed below which a reply counts as slow."""
_LOW_CLOCK_SHARE = 0.7
_LARGE_INTERFACE_SHARE = 0.35
_LARGE_CONTEXT_SHARE = 0.25


def samples_between(
    samples: Sequence[MachineSample], begin_s: float, end_s: float
) -> list[MachineSample]:
    """Return the samples that cover a part of a period."""
    return [
        sample
        for sample in samples
        if sample.at_s >= begin_s and sample.at_s - sample.interval_s <= end_s
    ]


def slow_cause(samples: Sequence[MachineSample], context_share: float = 0.0) -> str:
    """Name what slows a reply down, the most certain cause first; empty if nothing is seen.

    Args:
        samples: samples of the machine from the time of the reply.
        context_share: share of the context in the bytes that each token reads.
    """
    disk_rate = _mean([sample.disk_bytes_per_s for sample in samples])
    if disk_rate >= LEAST_DISK_BYTES_PER_S:
        return f"reading from disk, {figures.byte_size(disk_rate)}/s"
    if any(sample.throttled for sample in samples):
        return "the processor is too hot"
    other_cores = _mean([sample.others_cores for sample in samples])
    if other_cores > QUIET_CORES:
        n_cores = max(len(sample.core_loads) for sample in samples)
        return f"other programs use {other_cores:.1f} of {figures.counted(n_cores, 'core')}"
    if clock := _low_clock(samples):
        return clock
    if _mean([sample.interface_share for sample in samples]) >= _LARGE_INTERFACE_SHARE:
        return "drawing this screen"
    if context_share >= _LARGE_CONTEXT_SHARE:
        return "the conversation is long"
    return ""


def _low_clock(samples: Sequence[MachineSample]) -> str:
    clock_ghz = _mean([sample.clock_ghz for sample in samples])
    most_ghz = max((sample.most_clock_ghz or 0.0 for sample in samples), default=0.0)
    if not 0 < clock_ghz < _LOW_CLOCK_SHARE * most_ghz:
        return ""
    battery = samples[-1].battery
    on_battery = ""
    if battery is not None and battery.on_mains is False:
        on_battery = " on battery"
    return f"the clock is at {clock_ghz:.1f} of {most_ghz:.1f} GHz{on_battery}"


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    if not known:
        return 0.0
    return sum(known) / len(known)
