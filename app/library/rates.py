"""Measured rates of this machine's kernels, kept across starts; estimates of speed are made from them.

Numbers by machine and threads, in one small file that the doctor's measurements and those of the models screen fill.
The best of all measurements counts: another program can only make one slower. Nothing here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from pathlib import Path
from typing import Any, TypeGuard

from app.machine.reply_history import ReplyHistory, history_key, identity_of
from app.program import paths
from app.program.settings import MOST_THREADS, Settings
from app.program.small_file import JsonFile
from app.text.record import record

TYPICAL_READ_GBPS = 10.0
"""Bandwidth of two memory channels of an old laptop, for estimates before anything was measured."""
VERSION = 2
"""Those of version 1 may hold walks that were cancelled before they began."""
FILE_NAME = "rates.json"
_MOST_FILE_BYTES = 1 << 18
_MOST_KEYS = 32
_FASTEST = 1e6


@record
class KnownRates:
    """As ``engine.measure.fit.MachineRates``, whose fields it has: this file imports no engine."""

    read_gbps: float | None = None
    decode_gbps: Mapping[str, float] = field(default_factory=dict)
    prefill_gops: Mapping[str, float] = field(default_factory=dict)

    def joined(self, other: Any) -> KnownRates:
        """Return the better of both, figure by figure."""
        return KnownRates(
            _better(self.read_gbps, other.read_gbps),
            _better_of_each(self.decode_gbps, other.decode_gbps),
            _better_of_each(self.prefill_gops, other.prefill_gops),
        )


def usual_threads(settings: Settings) -> int:
    """Return the threads that measurements are kept for: those of the settings, else the engine's own choice."""
    from engine.machine import host

    return settings.threads or host.cores().default_threads


def load_rates(threads: int, path: Path | None = None) -> KnownRates:
    """Return the rates known for ``threads`` threads, else for the nearest number; empty where none are known."""
    known, identity = _read(path), identity_of("rates")
    nearest_first = sorted(range(1, MOST_THREADS + 1), key=lambda count: abs(count - threads))
    keys = (history_key(identity, count) for count in nearest_first)
    return next((_checked(known[key]) for key in keys if key in known), KnownRates())


def known_read_gbps(threads: int) -> float:
    """Return the best speed at which this machine's memory was read; 0 where that was never measured."""
    in_chat = ReplyHistory(paths.speeds_file()).read_gbps(history_key(identity_of("memory"), threads))
    return max(in_chat or 0.0, load_rates(threads).read_gbps or 0.0)


def remember_rates(threads: int, rates: Any, path: Path | None = None) -> KnownRates:
    """Keep a measurement (``engine.measure.fit.MachineRates``) and return what is known now."""
    known = _read(path)
    key = history_key(identity_of("rates"), threads)
    joined = _checked(known.pop(key, None)).joined(rates)
    known[key] = asdict(joined)
    _file(path).write(rates=dict(list(known.items())[-_MOST_KEYS:]))
    return joined


def _file(path: Path | None) -> JsonFile:
    directory = paths.state_dir()
    return JsonFile(path or (directory / FILE_NAME if directory else None), VERSION, _MOST_FILE_BYTES, oldest=VERSION)


def _read(path: Path | None) -> dict[str, Any]:
    rates = _file(path).read().get("rates")
    return rates if isinstance(rates, dict) else {}


def _checked(found: Any) -> KnownRates:
    if not isinstance(found, dict):
        return KnownRates()
    read_gbps = found.get("read_gbps")
    return KnownRates(
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


def _better(one: float | None, other: float | None) -> float | None:
    return max((rate for rate in (one, other) if rate), default=None)


def _better_of_each(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: max(one.get(name, 0.0), other.get(name, 0.0)) for name in dict.fromkeys([*one, *other])}
