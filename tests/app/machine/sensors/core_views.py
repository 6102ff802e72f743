"""Performance views of made machines: their cores, and what these did in the last minute."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app.machine.sensors.sample import MachineSample
from app.tui.speed.watch import PerformanceView
from engine.machine.core_map import CoreMap, read_core_map
from tests.app.machine.sensors.views import SAMPLE, view
from tests.engine import sysfs_trees


def core_map_of(
    write_tree: Callable[[Path], Path], n_cpus: int, allowed: Sequence[int] | None = None
) -> CoreMap:
    """Return the map of a made machine."""
    with tempfile.TemporaryDirectory() as folder:
        return read_core_map(allowed or range(n_cpus), write_tree(Path(folder)))


def minute(n_cpus: int, engine_cpus: Sequence[int], **changes: Any) -> tuple[MachineSample, ...]:
    """Return the samples of a minute in which the engine wrote for the last 40 seconds."""
    samples = []
    for second in range(60):
        loads = [0.1 + 0.1 * math.sin(second / 5 + cpu) for cpu in range(n_cpus)]
        if second >= 20:
            for cpu in engine_cpus:
                loads[cpu] = 0.97
        samples.append(
            dataclasses.replace(
                SAMPLE,
                at_s=100.0 + second,
                core_loads=tuple(loads),
                engine_cpus=tuple(engine_cpus) if second >= 20 else (),
                threads_working=len(engine_cpus),
                **changes,
            )
        )
    return tuple(samples)


def core_view(
    write_tree: Callable[[Path], Path],
    n_cpus: int,
    engine_cpus: Sequence[int],
    allowed: Sequence[int] | None = None,
    **changes: Any,
) -> PerformanceView:
    """Return the view of a made machine; ``changes`` replace fields of the samples."""
    samples = minute(n_cpus, engine_cpus, **changes)
    core_map = core_map_of(write_tree, n_cpus, allowed)
    return view(samples=samples, sample=samples[-1], core_map=core_map)


def laptop() -> PerformanceView:
    """Two cores with two threads each, which get hot, so that the clock falls."""
    hot = core_view(sysfs_trees.two_cores_four_threads, 4, (0, 1))
    samples = []
    for second, sample in enumerate(hot.samples):
        heat = min(1.0, max(0.0, (second - 20) / 30))
        samples.append(
            dataclasses.replace(
                sample,
                clock_ghz=2.9 - 0.8 * heat,
                core_clocks_ghz=(2.9 - 0.8 * heat, 2.8 - 0.8 * heat, 0.8, 0.8),
                temperature_c=52.0 + 45 * heat,
                throttled=int(second in (52, 53, 57)),
            )
        )
    return dataclasses.replace(hot, samples=tuple(samples), sample=samples[-1])


def hybrid() -> PerformanceView:
    """Four fast cores with two threads each and eight efficiency cores."""
    clocks = (4.4,) * 8 + (3.3,) * 8
    return core_view(
        sysfs_trees.small_hybrid, 16, (0, 2, 4, 6), core_clocks_ghz=clocks, most_clock_ghz=4.7,
        clock_ghz=4.4,
    )  # fmt: skip


def two_caches() -> PerformanceView:
    """Eight cores with two threads each, four cores at each of two caches."""
    return core_view(
        sysfs_trees.two_caches, 16, (0, 1, 2, 3, 4, 5, 6, 7), core_clocks_ghz=(4.1,) * 16,
        clock_ghz=4.1, most_clock_ghz=4.4, battery=None,
    )  # fmt: skip


def raspberry_pi() -> PerformanceView:
    """Four equal cores with one clock and a temperature."""
    return core_view(
        sysfs_trees.raspberry_pi, 4, (0, 1, 2), core_clocks_ghz=(1.8,), clock_ghz=1.8,
        most_clock_ghz=1.8, battery=None, governor=None, throttled=None,
    )  # fmt: skip


def server(n_cores: int = 64, n_threads: int = 2) -> PerformanceView:
    """Many cores with caches of eight cores each."""

    def write_tree(root: Path) -> Path:
        cores = [
            [core + n_cores * thread for thread in range(n_threads)] for core in range(n_cores)
        ]
        shared = [
            ",".join(str(cpu) for core in cores[first : first + 8] for cpu in core)
            for first in range(0, n_cores, 8)
        ]
        files = sysfs_trees.processors(cores, "AMD EPYC 7742") | sysfs_trees.caches({3: shared})
        return sysfs_trees.write(root, files | sysfs_trees.online(f"0-{n_cores * n_threads - 1}"))

    return core_view(write_tree, n_cores * n_threads, range(n_cores), battery=None)
