"""Speeds of earlier replies, and rates of memory and kernels: numbers only, by machine, model,
settings and threads.

The one store of what was measured: a small JSON file. Losing it costs nothing but the comparison,
so nothing here raises and nothing is flushed to the disk. Another program can only make a figure
worse: the best of all rates counts, and what was measured next to a busy program is no truth of its
own.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from app.program.small_file import JsonFile, checked
from app.text.record import record

T = TypeVar("T")

VERSION = 2
READ_GBPS = "read_gbps"
"""Name of the memory's bandwidth among the rates; others are named by kind and weight type, as
"decode_gbps Q4_K"."""
MOST_KEYS = 32
MOST_REPLIES = 50
LEAST_TOKENS = 8
"""Shorter replies say nothing about speed."""
LEAST_PROMPT_TOKENS = 16
"""Fewer tokens read say nothing about the speed of reading."""
_MAX_FILE_BYTES = 1 << 18
_KEY = re.compile(r"[0-9a-f]{16}\.\d{1,4}")
_RATE = re.compile(r"read_gbps|(decode_gbps|prefill_gops) [A-Z0-9_]{1,12}")
_LARGEST = 1e9
_LAST_UNIX_S = 32e9
"""Well inside what calendars can show."""
_ROW = tuple[float, float, float, float, float, bool]


@record
class PastReply:
    """The speed of one reply."""

    finished_unix_s: float
    tokens: float
    decode_tps: float
    prefill_tps: float
    """0 where too little was read to say."""
    first_token_s: float
    is_quiet: bool = True
    """Whether other programs left the machine alone."""


@record
class PastSpeeds:
    """Speeds of replies with the same model and settings so far."""

    n_replies: int
    median_tps: float
    best_tps: float
    best_unix_s: float


@record
class Speeds:
    """Tokens a second, and the threads that wrote; 0 for unknown."""

    decode_tps: float = 0.0
    prefill_tps: float = 0.0
    threads: int = 0


class ReplyHistory:
    """Earlier replies, kept in a file or, without one, for as long as the program runs."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = JsonFile(path, VERSION, _MAX_FILE_BYTES)
        self._replies: dict[str, list[PastReply]] = {}
        self._rates: dict[str, dict[str, float]] = {}
        self._load()

    def earlier(self, key: str) -> PastSpeeds | None:
        """Summarise the replies of one key; None where there are none."""
        replies = self._replies.get(key)
        if not replies:
            return None
        import statistics  # not with the module, nor hashlib: the first frame would wait for them

        best = max(replies, key=lambda reply: reply.decode_tps)
        usual = statistics.median(reply.decode_tps for reply in _quiet(replies))
        return PastSpeeds(len(replies), usual, best.decode_tps, best.finished_unix_s)

    def usual(self, identity: str) -> Speeds | None:
        """Return the usual speeds of the thread count that wrote fastest; None where there was no
        reply."""
        import statistics

        speeds = []
        for threads, replies in self._of(identity):
            quiet = _quiet(replies)
            read = [reply.prefill_tps for reply in quiet if reply.prefill_tps > 0]
            decode_tps = statistics.median(reply.decode_tps for reply in quiet)
            speeds.append(Speeds(decode_tps, statistics.median(read) if read else 0.0, threads))
        return max(speeds, key=lambda speed: speed.decode_tps, default=None)

    def newest(self, identity: str) -> PastReply | None:
        """Return the last reply, whatever its threads; None where there was none."""
        replies = [reply for _, found in self._of(identity) for reply in found]
        return max(replies, key=lambda reply: reply.finished_unix_s, default=None)

    def _of(self, identity: str) -> list[tuple[int, list[PastReply]]]:
        """Return the replies of each thread count."""
        keys = [key for key in self._replies if key.startswith(f"{identity}.")]
        return [
            (int(key.rpartition(".")[2]), self._replies[key]) for key in keys if self._replies[key]
        ]

    def add(self, key: str, reply: PastReply) -> None:
        """Remember a reply, unless it was too short to say anything."""
        if reply.tokens < LEAST_TOKENS or not _is_sound(reply):
            return
        self._load()  # another instance may have written meanwhile
        replies = self._replies.pop(key, [])
        self._replies[key] = [*replies, reply][-MOST_REPLIES:]
        self._replies = _newest(self._replies)
        self._save()

    def rates(self, key: str) -> Mapping[str, float]:
        """Return the rates known of a key, by name; {} for none."""
        return self._rates.get(key, {})

    def remember_rates(
        self, key: str, rates: Mapping[str, float], is_quiet: bool
    ) -> Mapping[str, float]:
        """Remember measurements and return the best of all, by name.

        What was measured while other programs were busy is remembered only where it beats a figure
        from a quiet time.
        """
        self._load()
        known = self._rates.pop(key, {})
        measured = {
            name: rate
            for name, rate in rates.items()
            if _is_rate(name, rate) and (is_quiet or name in known)
        }
        joined = {
            **known,
            **{name: max(rate, known.get(name, 0.0)) for name, rate in measured.items()},
        }
        if joined:
            self._rates = _newest({**self._rates, key: joined})
            self._save()
        return joined

    def _load(self) -> None:
        content = self._file.read()  # what is damaged is left out, and replaced by the next reply
        for key, rows in _entries(content.get("replies")).items():
            if isinstance(rows, list):
                replies = [reply for row in rows if (reply := _reply_of(row))]
            else:
                replies = []
            if replies:
                self._replies[key] = replies[-MOST_REPLIES:]
        for key, kept in _entries(content.get("rates")).items():
            if isinstance(kept, dict):
                rates = {name: rate for name, rate in kept.items() if _is_rate(name, rate)}
            else:
                rates = {}
            if rates:
                self._rates[key] = rates

    def _save(self) -> None:
        replies = {
            key: [list(vars(reply).values()) for reply in replies]
            for key, replies in self._replies.items()
        }
        self._file.write(rates=self._rates, replies=replies)


def history_key(identity: str, threads: int) -> str:
    """Name what replies or measurements are comparable under."""
    return f"{identity}.{threads}"


@cache
def rates_key(threads: int) -> str:
    """Name what the rates of memory and kernels are kept under."""
    return history_key(identity_of("rates"), threads)


def identity_of(*parts: object) -> str:
    """Return 16 hexadecimal digits for this machine and what else makes figures comparable."""
    import hashlib

    text = "\0".join([machine_name(), *map(str, parts)])
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


@cache
def machine_name() -> str:
    """Return what tells this processor from another; never shown."""
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


def _entries(value: object) -> dict[str, Any]:
    return _newest(
        {key: one for key, one in value.items() if _KEY.fullmatch(key)}
        if isinstance(value, dict)
        else {}
    )


def _reply_of(row: object) -> PastReply | None:
    """Return the reply that a row is of; None for a row that is not sound."""
    with suppress(ValueError):
        reply = PastReply(*checked(_ROW, row))
        if _is_sound(reply):
            return reply
        return None
    return None


def _is_sound(reply: PastReply) -> bool:
    figures = reply.tokens, reply.decode_tps, reply.prefill_tps, reply.first_token_s
    is_date = 0 <= reply.finished_unix_s <= _LAST_UNIX_S
    return is_date and all(0 <= one <= _LARGEST for one in figures) and reply.decode_tps > 0


def _quiet(replies: list[PastReply]) -> list[PastReply]:
    """Return those of quiet times; where there are none, the fastest of the others, which was
    disturbed least."""
    return [reply for reply in replies if reply.is_quiet] or [
        max(replies, key=lambda reply: reply.decode_tps)
    ]


def _is_rate(name: str, rate: object) -> bool:
    return _RATE.fullmatch(name) is not None and type(rate) in (int, float) and 0 < rate <= _LARGEST  # type: ignore[operator]
