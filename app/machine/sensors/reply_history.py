"""Speeds of earlier replies, and rates of memory and kernels, by machine, model, settings and
threads.

This is the only store of measurements: a small JSON file with numbers. Losing it costs a
comparison, so nothing here raises and nothing is flushed to the disk. Other programs can only make
figures worse: the best rate counts, and figures measured next to busy programs count only if they
are better.

The usual speed comes from the last replies with each setting, and from measurements by tuning and
benchmarks. The history by day is of replies alone.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from app.machine.sensors.daily_speeds import (
    DailySpeeds,
    ReplyConditions,
    ReplySpeed,
    as_json,
    day_of,
    days_of,
    from_json,
    noon_of,
)
from app.program.small_file import JsonFile, checked
from app.text.record import record

T = TypeVar("T")

VERSION = 2
READ_GBPS = "read_gbps"
"""Name of the memory bandwidth among the rates. Others are named like "decode_gbps Q4_K"."""
ENCODE_GOPS = "encode_gops"
"""Name of the rate of an encoder for pictures, in 10^9 multiplications per second."""
MOST_KEYS = 32
"""Limit on models and settings; those used longest ago are dropped."""
MOST_REPLIES = 50
LEAST_TOKENS = 50
"""Shorter replies do not count."""
LEAST_PROMPT_TOKENS = 200
"""Shorter prompts do not count."""
_WEIGHTS_MODES = ("mmap", "huge")
_MAX_FILE_BYTES = 1 << 19
_KEY = re.compile(r"[0-9a-f]{16}\.\d{1,4}")
_MODEL_KEY = re.compile(r"[0-9a-f]{16}")
_RATE = re.compile(r"read_gbps|encode_gops|(decode_gbps|prefill_gops) [A-Z0-9_]{1,12}")
_LARGEST = 1e9
_LAST_UNIX_S = 32e9
"""Latest time that calendars can show safely."""
_ROW = tuple[float, float, float, float, float, bool]


@record
class PastReply:
    """The speed of one reply."""

    finished_unix_s: float
    tokens: float
    decode_tps: float
    prefill_tps: float
    """Speed of reading; 0 if too little was read."""
    first_token_s: float
    is_quiet: bool = True
    """Whether other programs were quiet."""


class Basis(str, Enum):
    """Basis of a speed; its value is the word for it."""

    ESTIMATED = "estimated"
    MEASURED = "measured"
    BUSY = "measured while busy"
    """Measured only while other programs used the processor."""


@record
class Speeds:
    """Usual speeds of a model on this machine, with the fastest settings that were used; 0 if
    unknown."""

    decode_tps: float = 0.0
    prefill_tps: float = 0.0
    threads: int = 0
    basis: Basis = Basis.ESTIMATED
    prefill_basis: Basis = Basis.ESTIMATED


@record
class PastSpeeds:
    """Speeds of the replies of a model on this machine."""

    usual: Speeds
    n_replies: int
    best_tps: float
    best_unix_s: float

    @property
    def median_tps(self) -> float:
        """Usual speed of writing."""
        return self.usual.decode_tps

    @property
    def median_name(self) -> str:
        """Label of the usual speed: "while busy" if other programs always used the processor."""
        if self.usual.basis is Basis.BUSY:
            return "while busy"
        return "usual"


class ReplyHistory:
    """Earlier replies, saved in a file; without a path they are only in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = JsonFile(path, VERSION, _MAX_FILE_BYTES)
        self._replies: dict[str, list[PastReply]] = {}
        self._rates: dict[str, dict[str, float]] = {}
        self._daily: dict[str, DailySpeeds] = {}
        self._load()

    def earlier(self, model: KnownAs) -> PastSpeeds | None:
        """Return a summary of a model's replies and measurements; None if there are none."""
        usual = self.usual(model)
        if usual is None:
            return None
        replies = [reply for _, some in self._by_threads(model) for reply in some]
        best = max(replies, key=lambda reply: reply.decode_tps)
        best_tps = best.decode_tps
        best_unix_s = best.finished_unix_s
        days = self.daily(model).all_days()
        best_day = max(days, key=lambda day: day.fastest_tps, default=None)
        if best_day is not None and best_day.fastest_tps > best_tps:  # its reply was dropped
            best_tps = best_day.fastest_tps
            best_unix_s = noon_of(best_day.day)
        return PastSpeeds(usual, len(replies), best_tps, best_unix_s)

    def daily(self, model: KnownAs) -> DailySpeeds:
        """Return the history of a model by day."""
        if model.any_setting in self._daily:
            return self._daily[model.any_setting]
        # an earlier version saved only the last replies
        replies = [reply for _, some in self._by_threads(model) for reply in some]
        speeds = [ReplySpeed(reply.finished_unix_s, reply.decode_tps) for reply in replies]
        speeds.sort(key=lambda speed: speed.finished_unix_s)
        last_day = day_of(speeds[-1].finished_unix_s) if speeds else 0
        earlier = [speed for speed in speeds if day_of(speed.finished_unix_s) != last_day]
        return DailySpeeds(tuple(days_of(earlier)), tuple(speeds[len(earlier) :]))

    def usual(self, model: KnownAs) -> Speeds | None:
        """Return the usual speeds of a model, with the fastest threads and memory for its weights;
        None if nothing was measured.

        Figures of quiet times come first.
        """
        speeds = [_usual(threads, replies) for threads, replies in self._by_threads(model)]

        def worth(usual: Speeds) -> tuple[bool, float]:
            return usual.basis is Basis.MEASURED, usual.decode_tps

        return max(speeds, key=worth, default=None)

    def newest(self, model: KnownAs) -> PastReply | None:
        """Return the last reply with any settings; None if there is none."""
        replies = [reply for _, some in self._by_threads(model) for reply in some]
        return max(replies, key=lambda reply: reply.finished_unix_s, default=None)

    def _by_threads(self, model: KnownAs) -> list[tuple[int, list[PastReply]]]:
        """Return the number of threads and the replies of each setting."""
        identities = [model.identity(mode) for mode in _WEIGHTS_MODES]
        return [
            (int(key.rpartition(".")[2]), replies)
            for key, replies in self._replies.items()
            if replies and key.partition(".")[0] in identities
        ]

    def add(self, key: str, reply: PastReply) -> None:
        """Save a measurement for the usual speed, unless it is too short."""
        if not counts(reply):
            return
        with self._file.locked():
            self._load()  # another process may have written
            self._add(key, reply)
            self._save()

    def add_reply(
        self, model: KnownAs, weights_mode: str, reply: PastReply, conditions: ReplyConditions
    ) -> None:
        """Save a reply for the usual speed and for the history by day, unless it is too short."""
        if not counts(reply):
            return
        with self._file.locked():
            self._load()
            daily = self.daily(model).with_reply(
                reply.finished_unix_s, reply.decode_tps, conditions
            )
            self._set_daily(model, daily)
            self._add(model.key(weights_mode, conditions.threads), reply)
            self._save()

    def _add(self, key: str, reply: PastReply) -> None:
        replies = self._replies.pop(key, [])
        self._replies[key] = [*replies, reply][-MOST_REPLIES:]
        self._replies = _newest(self._replies)

    def mark_tuned(self, model: KnownAs) -> None:
        """Note that a choice was kept; the next reply has a mark."""
        with self._file.locked():
            self._load()
            self._set_daily(model, replace(self.daily(model), is_tuned_since=True))
            self._save()

    def _set_daily(self, model: KnownAs, daily: DailySpeeds) -> None:
        self._daily.pop(model.any_setting, None)
        self._daily = _newest({**self._daily, model.any_setting: daily})

    def rates(self, key: str) -> Mapping[str, float]:
        """Return the rates of a key by name; empty if there are none."""
        return self._rates.get(key, {})

    def remember_rates(
        self, key: str, rates: Mapping[str, float], is_quiet: bool
    ) -> Mapping[str, float]:
        """Save measurements and return the best of all by name.

        Measurements next to busy programs are saved only if they beat an earlier one.
        """
        with self._file.locked():
            self._load()
            saved = self._rates.pop(key, {})
            measured = {
                name: rate
                for name, rate in rates.items()
                if _is_rate(name, rate) and (is_quiet or name in saved)
            }
            best = {
                **saved,
                **{name: max(rate, saved.get(name, 0.0)) for name, rate in measured.items()},
            }
            if best:
                self._rates = _newest({**self._rates, key: best})
                self._save()
        return best

    def _load(self) -> None:
        # damaged rows are dropped, and replaced with the next reply
        content = self._file.read_or_put_aside()
        for key, rows in _entries(content.get("replies")).items():
            if isinstance(rows, list):
                replies = [reply for row in rows if (reply := _reply_of(row))]
            else:
                replies = []
            if replies:
                self._replies[key] = replies[-MOST_REPLIES:]
        for key, saved in _entries(content.get("rates")).items():
            if isinstance(saved, dict):
                rates = {name: rate for name, rate in saved.items() if _is_rate(name, rate)}
            else:
                rates = {}
            if rates:
                self._rates[key] = rates
        for key, saved in _entries(content.get("models"), _MODEL_KEY).items():
            self._daily[key] = from_json(saved)

    def _save(self) -> None:
        replies = {
            key: [list(vars(reply).values()) for reply in replies]
            for key, replies in self._replies.items()
        }
        models = {key: as_json(daily) for key, daily in self._daily.items()}
        self._file.write(rates=self._rates, replies=replies, models=models)


def past_measurement(
    n_written: int, decode_tps: float, n_read: int, prefill_tps: float, is_quiet: bool
) -> PastReply:
    """Return a benchmark as a reply: tokens written and read in all, and the median speeds."""
    if n_read < LEAST_PROMPT_TOKENS or prefill_tps <= 0:
        return PastReply(time.time(), n_written, decode_tps, 0.0, 0.0, is_quiet)
    return PastReply(
        time.time(), n_written, decode_tps, prefill_tps, n_read / prefill_tps, is_quiet
    )


@record
class KnownAs:
    """Facts that identify a model in the history."""

    name: str
    quantization: str
    weights_bytes: int

    def identity(self, weights_mode: str) -> str:
        """Return the identity of the model with its weights in a kind of memory."""
        return identity_of(self.name, self.quantization, self.weights_bytes, weights_mode)

    @property
    def any_setting(self) -> str:
        """Key of the model's replies with all settings."""
        return self.identity("any")

    def key(self, weights_mode: str, threads: int) -> str:
        """Return the key of the model's replies with some settings."""
        return history_key(self.identity(weights_mode), threads)


def history_key(identity: str, threads: int) -> str:
    """Return the key of comparable replies or measurements."""
    return f"{identity}.{threads}"


@cache
def rates_key(threads: int) -> str:
    """Return the key of the rates of memory and kernels."""
    return history_key(identity_of("rates"), threads)


def identity_of(*facts: object) -> str:
    """Return 16 hexadecimal digits for this machine and everything that makes figures
    comparable.
    """
    import hashlib

    text = "\0".join([machine_name(), *map(str, facts)])
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


@cache
def machine_name() -> str:
    """Return text that identifies the processor; it is never shown."""
    with (
        suppress(OSError, StopIteration),
        open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file,
    ):
        return next(
            line
            for line in file.read(1 << 16).splitlines()
            if line.startswith(("model name", "Hardware"))
        )
    return f"{platform.machine()} {platform.processor()}"


def _newest(entries: dict[str, T]) -> dict[str, T]:
    return dict(list(entries.items())[-MOST_KEYS:])


def _entries(value: object, pattern: re.Pattern[str] = _KEY) -> dict[str, Any]:
    return _newest(
        {key: entry for key, entry in value.items() if pattern.fullmatch(key)}
        if isinstance(value, dict)
        else {}
    )


def _reply_of(row: object) -> PastReply | None:
    """Return the reply of a row; None if the row is unsound."""
    with suppress(ValueError):
        reply = PastReply(*checked(_ROW, row))
        if not counts(reply):
            return None
        # an earlier version saved the speed of short prompts, too
        if reply.prefill_tps * reply.first_token_s < LEAST_PROMPT_TOKENS:
            return replace(reply, prefill_tps=0.0)
        return reply
    return None


def counts(reply: PastReply) -> bool:
    """Whether a reply counts for the usual speed and the history: the only rule for both."""
    return reply.tokens >= LEAST_TOKENS and _is_sound(reply)


def _is_sound(reply: PastReply) -> bool:
    figures = reply.tokens, reply.decode_tps, reply.prefill_tps, reply.first_token_s
    is_date = 0 <= reply.finished_unix_s <= _LAST_UNIX_S
    return is_date and all(0 <= figure <= _LARGEST for figure in figures) and reply.decode_tps > 0


def _usual(threads: int, replies: list[PastReply]) -> Speeds:
    """Return the median speeds of quiet times, or else the highest, which were least disturbed."""
    decode_tps, basis = _middle(replies, lambda reply: reply.decode_tps)
    prefill_tps, prefill_basis = _middle(replies, lambda reply: reply.prefill_tps)
    return Speeds(decode_tps, prefill_tps, threads, basis, prefill_basis)


def _middle(
    replies: list[PastReply], speed_of: Callable[[PastReply], float]
) -> tuple[float, Basis]:
    import statistics  # module imports would delay the first frame

    quiet = [tps for reply in replies if reply.is_quiet and (tps := speed_of(reply)) > 0]
    if quiet:
        return statistics.median(quiet), Basis.MEASURED
    fastest = max(map(speed_of, replies), default=0.0)
    return fastest, Basis.BUSY if fastest else Basis.ESTIMATED


def _is_rate(name: str, rate: object) -> bool:
    if _RATE.fullmatch(name) is None or not isinstance(rate, (int, float)):
        return False
    return not isinstance(rate, bool) and 0 < rate <= _LARGEST
