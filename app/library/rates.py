"""Measured rates of this machine's kernels, kept across starts; estimates of speed are made from them.

Numbers by machine and threads, in one small file that the doctor's measurements and those of the models screen fill.
The best of all measurements counts: another program can only make one slower. Nothing here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeGuard

from app.machine.reply_history import ReplyHistory, history_key, identity_of
from app.program import paths
from app.program.settings import MOST_THREADS, Settings
from app.program.small_file import JsonFile

if TYPE_CHECKING:
    from engine.measure.fit import MachineRates

TYPICAL_READ_GBPS = 10.0
"""Bandwidth of two memory channels of an old laptop, for estimates before anything was measured."""
VERSION = 2
"""Those of version 1 may hold walks that were cancelled before they began."""
_MOST_FILE_BYTES = 1 << 18
_MOST_KEYS = 32
_FASTEST = 1e6


def better_rates(one: MachineRates, other: MachineRates) -> MachineRates:
    """Return the better of both, figure by figure."""
    return _rates(
        max(filter(None, (one.read_gbps, other.read_gbps)), default=None),
        _better_of_each(one.decode_gbps, other.decode_gbps),
        _better_of_each(one.prefill_gops, other.prefill_gops),
    )


def _rates(*figures: Any) -> MachineRates:
    from engine.measure.fit import MachineRates  # NumPy, which no first frame waits for

    return MachineRates(*figures)


def usual_threads(settings: Settings) -> int:
    """Return the threads that measurements are kept for: those of the settings, else the engine's own choice."""
    from engine.machine import host

    return settings.threads or host.cores().default_threads


def load_rates(threads: int) -> MachineRates:
    """Return the rates known for ``threads`` threads, else for the nearest number; empty where none are known."""
    known, identity = _read(), identity_of("rates")
    nearest_first = sorted(range(1, MOST_THREADS + 1), key=lambda count: abs(count - threads))
    keys = (history_key(identity, count) for count in nearest_first)
    return next((_checked(known[key]) for key in keys if key in known), _rates())


def known_read_gbps(threads: int) -> float:
    """Return the best speed at which this machine's memory was read; 0 where that was never measured."""
    in_chat = ReplyHistory(paths.speeds_file()).read_gbps(history_key(identity_of("memory"), threads))
    return max(in_chat or 0.0, load_rates(threads).read_gbps or 0.0)


def remember_rates(threads: int, rates: MachineRates) -> MachineRates:
    """Keep a measurement and return what is known now."""
    known = _read()
    key = history_key(identity_of("rates"), threads)
    joined = better_rates(_checked(known.pop(key, None)), rates)
    known[key] = asdict(joined)
    _file().write(rates=dict(list(known.items())[-_MOST_KEYS:]))
    return joined


def _file() -> JsonFile:
    return JsonFile(paths.rates_file(), VERSION, _MOST_FILE_BYTES, oldest=VERSION)


def _read() -> dict[str, Any]:
    rates = _file().read().get("rates")
    return rates if isinstance(rates, dict) else {}


def _checked(found: Any) -> MachineRates:
    found = found if isinstance(found, dict) else {}
    read_gbps = found.get("read_gbps")
    return _rates(
        float(read_gbps) if _is_rate(read_gbps) else None,
        _checked_by_type(found.get("decode_gbps")),
        _checked_by_type(found.get("prefill_gops")),
    )


def _checked_by_type(found: Any) -> dict[str, float]:
    if not isinstance(found, dict):
        return {}
    return {name: float(rate) for name, rate in found.items() if _is_rate(rate)}


def _is_rate(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and 0 < value < _FASTEST  # NaN is in no range


def _better_of_each(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in dict.fromkeys([*one, *other])}
