"""Measured rates of this machine's kernels, kept across starts; estimates of speed are made from
them.

They are in the store of speeds (``app/machine/sensors/reply_history.py``), by machine and threads. Nothing
here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.machine.sensors.reply_history import READ_GBPS, ReplyHistory, rates_key
from app.program import paths
from app.program.settings import MOST_THREADS, Settings

if TYPE_CHECKING:
    from engine.measure.fit import MachineRates

TYPICAL_READ_GBPS = 10.0
"""Bandwidth of two memory channels of an old laptop, for estimates before anything was measured."""


def usual_threads(settings: Settings) -> int:
    """Return the threads that measurements are kept for: those of the settings, else the engine's
    own choice."""
    from engine.machine import host

    return settings.threads or host.cores().default_threads


def load_rates(threads: int) -> MachineRates:
    """Return the rates known for ``threads`` threads, else for the nearest number; empty where none
    are known."""
    history = ReplyHistory(paths.speeds_file())
    nearest_first = sorted(range(1, MOST_THREADS + 1), key=lambda count: abs(count - threads))
    return _as_rates(
        next(filter(None, (history.rates(rates_key(count)) for count in nearest_first)), {})
    )


def known_read_gbps(threads: int) -> float:
    """Return the best speed at which this machine's memory was read; 0 where that was never
    measured."""
    return load_rates(threads).read_gbps or 0.0


def rates_or_typical(threads: int) -> MachineRates:
    """Return the rates known, or the typical bandwidth of an old laptop."""
    from engine.measure.fit import MachineRates  # NumPy, which no first frame waits for

    known = load_rates(threads)
    if known.read_gbps:
        return known
    return MachineRates(TYPICAL_READ_GBPS)


def remember_rates(threads: int, rates: MachineRates, is_quiet: bool = True) -> MachineRates:
    """Keep a measurement, one next to busy programs only where it beats what is known; return what
    is known now."""
    named = {
        f"{kind} {name}": rate for kind in _KINDS for name, rate in getattr(rates, kind).items()
    }
    if rates.read_gbps:
        named[READ_GBPS] = rates.read_gbps
    return _as_rates(
        ReplyHistory(paths.speeds_file()).remember_rates(rates_key(threads), named, is_quiet)
    )


_KINDS = ("decode_gbps", "prefill_gops")


def _as_rates(named: Mapping[str, float]) -> MachineRates:
    from engine.measure.fit import MachineRates

    decode_gbps, prefill_gops = (
        {
            name.removeprefix(f"{kind} "): rate
            for name, rate in named.items()
            if name.startswith(f"{kind} ")
        }
        for kind in _KINDS
    )
    return MachineRates(named.get(READ_GBPS), decode_gbps, prefill_gops)
