"""Measured rates of this machine's kernels, for estimates of speed.

They are saved with the speeds of replies (``app/machine/sensors/reply_history.py``), by machine and
number of threads. Nothing here raises.
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
"""Bandwidth of two memory channels of an old laptop, for estimates without measurements."""


def usual_threads(settings: Settings) -> int:
    """Return the number of threads of the measurements: from the settings, or the engine's
    choice.
    """
    from engine.machine import host

    return settings.threads or host.cores().default_threads


def load_rates(threads: int) -> MachineRates:
    """Return the rates for a number of threads, or the nearest number; empty if there are none."""
    history = ReplyHistory(paths.speeds_file())
    nearest_first = sorted(range(1, MOST_THREADS + 1), key=lambda count: abs(count - threads))
    return _as_rates(
        next(filter(None, (history.rates(rates_key(count)) for count in nearest_first)), {})
    )


def known_read_gbps(threads: int) -> float:
    """Return the best measured read speed of memory; 0 if it was never measured."""
    return load_rates(threads).read_gbps or 0.0


def rates_or_typical(threads: int) -> MachineRates:
    """Return the measured rates, or the typical bandwidth of an old laptop."""
    from engine.measure.fit import (
        MachineRates,
    )  # imports NumPy, which the first frame does not need

    rates = load_rates(threads)
    if rates.read_gbps:
        return rates
    return MachineRates(TYPICAL_READ_GBPS)


def remember_rates(threads: int, rates: MachineRates, is_quiet: bool = True) -> MachineRates:
    """Save measured rates and return the known ones.

    Rates next to busy programs count only if they are better.
    """
    rates_by_name = {
        f"{group} {name}": rate for group in _KINDS for name, rate in getattr(rates, group).items()
    }
    if rates.read_gbps:
        rates_by_name[READ_GBPS] = rates.read_gbps
    return _as_rates(
        ReplyHistory(paths.speeds_file()).remember_rates(
            rates_key(threads), rates_by_name, is_quiet
        )
    )


_KINDS = ("decode_gbps", "prefill_gops")


def _as_rates(rates_by_name: Mapping[str, float]) -> MachineRates:
    from engine.measure.fit import MachineRates

    decode_gbps, prefill_gops = (
        {
            name.removeprefix(f"{group} "): rate
            for name, rate in rates_by_name.items()
            if name.startswith(f"{group} ")
        }
        for group in _KINDS
    )
    return MachineRates(rates_by_name.get(READ_GBPS), decode_gbps, prefill_gops)
