"""Resources that the idle chat holds, and whether they grow with its work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

WARM_UP = 12
"""Samples of a process that do not count: screens are imported when first shown, models opened."""
LEAST = 30
"""With fewer samples after these nothing is judged."""
LEAST_FOR_MEMORY = 160
"""Steps of a life whose memory is judged."""
MEMORY_SHARE = 1 / 4
"""The last two parts of a life of this share are judged, and the better one counts: a leak is in
both.

Measured in a life of 200 steps, what is in use stays where it is after the first 40: 155 MiB of
malloc's, and between 1.1 and 1.4 million of Python's blocks, which fall back to 1.1 each time the
collector has gone through the widgets that were removed. What grows is what glibc and Python keep
free between pieces that are in use (30 to 56 MiB and 134 to 158 MiB): each new peak (a screen of
300x100, a folded conversation laid out, a collection that came late) raises it, nothing lowers it,
and new peaks are ever rarer. So it grows like a logarithm and then by steps, while a leak goes on
as it began: late in a life only a leak has a slope wherever one looks.
"""
MOST_MIB_PER_100_STEPS = 8.0
"""The same life showed 18 in the third quarter and 0.2 in the last. A leak of 80 kB for each step
passes this: the widgets of one turn; a KV cache or a model that stays after at a switch passes it
many times over."""
MOST_MORE_DESCRIPTORS = 6
"""An open log, a lock and a listing may come and go; a leak of one in each model switch passes that
soon."""
MOST_MORE_MAPS = 64
"""Limit on the growth of maps.

glibc and Python map memory for new peaks; a file that stays mapped, or a thread's stack, comes
again and again.
"""
SETTLED_S = 600.0
"""Age from which on a long life is judged as a whole: everything was shown and opened once."""
MOST_MORE_THREADS = 8
"""Writers of conversations end late, the engine's threads come with another number of them."""


_LIMITS = {
    "n_descriptors": MOST_MORE_DESCRIPTORS,
    "n_threads": MOST_MORE_THREADS,
    "n_children": 0,
    "n_maps": MOST_MORE_MAPS,
}


@dataclass(frozen=True)
class Sample:
    """Sample of a process that waits for its user."""

    step: int
    rss_bytes: int
    anonymous_bytes: int
    n_descriptors: int
    n_threads: int
    n_children: int
    n_maps: int = 0
    """Ranges of memory, as the system lists them."""
    seconds: float = 0.0
    """Age of the process."""


def sample(process: psutil.Process, step: int) -> Sample:
    """Look at a process."""
    return Sample(
        step,
        process.memory_info().rss,
        _anonymous_bytes(process.pid),
        process.num_fds(),
        process.num_threads(),
        len(process.children()),
        _n_maps(process.pid),
        max(0.0, time.time() - process.create_time()),
    )


def _n_maps(pid: int) -> int:
    with open(f"/proc/{pid}/maps", "rb") as maps:
        return sum(1 for _ in maps)


def _anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    return 0


def slope_mib_per_100_steps(samples: Sequence[Sample]) -> float:
    """Return how anonymous memory grows: the median over all pairs, which no single peak moves."""
    chosen = samples[:: max(1, len(samples) // 200)]
    slopes = [
        (later.anonymous_bytes - earlier.anonymous_bytes) / (later.step - earlier.step)
        for index, earlier in enumerate(chosen)
        for later in chosen[index + 1 :]
        if later.step > earlier.step
    ]
    return statistics.median(slopes) * 100 / (1 << 20) if slopes else 0.0


def memory_slope(samples: Sequence[Sample]) -> float | None:
    """Return how memory grows at the end of one process's life, in MiB in 100 steps; None for too
    short a life."""
    if len(samples) < LEAST_FOR_MEMORY:
        return None
    n = round(MEMORY_SHARE * len(samples))
    return min(slope_mib_per_100_steps(quarter) for quarter in (samples[-2 * n : -n], samples[-n:]))


def growth(samples: Sequence[Sample]) -> list[str]:
    """Return what of one process grew more than it may."""
    settled = samples[WARM_UP:]
    if len(settled) < LEAST:
        return []
    troubles = []
    slope = memory_slope(samples)
    if slope is not None and slope > MOST_MIB_PER_100_STEPS:
        troubles.append(
            f"memory grows by {slope:.1f} MiB in 100 steps; {MOST_MIB_PER_100_STEPS} are allowed"
        )
    troubles += _more(settled)
    return troubles


def verdict(samples: Sequence[Sample]) -> list[str]:
    """Return what of one long life grew after its first ten minutes.

    Raises:
        ValueError: it is too short to tell.
    """
    settled = [sample for sample in samples if sample.seconds >= SETTLED_S]
    if len(settled) < LEAST:
        raise ValueError(
            f"{len(settled)} samples after {SETTLED_S / 60:g} minutes; {LEAST} are needed"
        )
    slope = slope_mib_per_100_steps(settled[len(settled) // 2 :])
    troubles = _more(settled)
    if slope > MOST_MIB_PER_100_STEPS:
        troubles.insert(
            0, f"memory grows by {slope:.1f} MiB in 100 steps; {MOST_MIB_PER_100_STEPS} are allowed"
        )
    return troubles


def _more(settled: Sequence[Sample]) -> list[str]:
    """Return what there is more of in the last quarter than in the first."""
    quarter = max(1, len(settled) // 4)
    troubles = []
    for name, most in _LIMITS.items():
        first = statistics.median(getattr(sample, name) for sample in settled[:quarter])
        last = statistics.median(getattr(sample, name) for sample in settled[-quarter:])
        if last - first > most:
            troubles.append(f"{name[2:]} grew from {first:g} to {last:g}; {most} more are allowed")
    return troubles
