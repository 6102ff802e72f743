"""Speeds of earlier replies, and the memory speed once measured: numbers only, by machine, model and settings.

One small JSON file; losing it costs nothing but the comparison, so nothing here raises and nothing is flushed to the
disk. Used by the engine's thread, between replies.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from app.program.small_file import JsonFile
from app.text.record import record

T = TypeVar("T")

VERSION = 1
MOST_KEYS = 32
MOST_REPLIES = 50
LEAST_TOKENS = 8
"""Shorter replies say nothing about speed."""
_MAX_FILE_BYTES = 1 << 18
_KEY = re.compile(r"[0-9a-f]{16}\.\d{1,4}")
_LARGEST = 1e9


@record
class PastReply:
    """The speed of one reply."""

    finished_unix_s: float
    tokens: float
    decode_tps: float
    prefill_tps: float
    first_token_s: float


@record
class Earlier:
    """Speeds of replies with the same model and settings so far."""

    n_replies: int
    median_tps: float
    best_tps: float
    best_unix_s: float


@record
class Speeds:
    """Tokens a second; 0 for unknown."""

    decode_tps: float = 0.0
    prefill_tps: float = 0.0


class ReplyHistory:
    """Earlier replies, kept in a file or, without one, for as long as the program runs."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = JsonFile(path, VERSION, _MAX_FILE_BYTES)
        self._replies: dict[str, list[PastReply]] = {}
        self._read_gbps: dict[str, float] = {}
        self._load()

    def earlier(self, key: str) -> Earlier | None:
        """Summarise the replies of one key; None where there are none."""
        replies = self._replies.get(key)
        if not replies:
            return None
        import statistics  # not with the module, nor hashlib: the first frame would wait for them

        best = max(replies, key=lambda reply: reply.decode_tps)
        median = statistics.median(reply.decode_tps for reply in replies)
        return Earlier(len(replies), median, best.decode_tps, best.finished_unix_s)

    def usual(self, identity: str) -> Speeds | None:
        """Return the usual speeds of the thread count that wrote fastest; None where there was no reply."""
        import statistics

        speeds = [
            Speeds(
                statistics.median(reply.decode_tps for reply in replies),
                statistics.median(reply.prefill_tps for reply in replies),
            )
            for _, replies in self._of(identity)
        ]
        return max(speeds, key=lambda speed: speed.decode_tps, default=None)

    def last(self, identity: str) -> tuple[PastReply, int] | None:
        """Return the newest reply of any thread count, with that count; None where there was none."""
        found = [(replies[-1], threads) for threads, replies in self._of(identity)]
        return max(found, key=lambda one: one[0].finished_unix_s, default=None)

    def _of(self, identity: str) -> list[tuple[int, list[PastReply]]]:
        """Return the replies of each thread count."""
        keys = [key for key in self._replies if key.startswith(f"{identity}.")]
        return [(int(key.rpartition(".")[2]), self._replies[key]) for key in keys if self._replies[key]]

    def add(self, key: str, reply: PastReply) -> None:
        """Remember a reply, unless it was too short to say anything."""
        if reply.tokens < LEAST_TOKENS or _past_reply(list(vars(reply).values())) is None:
            return
        self._load()  # another instance may have written meanwhile
        replies = self._replies.pop(key, [])
        self._replies[key] = [*replies, reply][-MOST_REPLIES:]
        self._replies = _newest(self._replies)
        self._save()

    def read_gbps(self, key: str) -> float | None:
        """Return the memory bandwidth once measured for a key."""
        return self._read_gbps.get(key)

    def remember_read_gbps(self, key: str, gbps: float) -> float:
        """Remember a measurement; the best of all is what the machine can do, and is returned."""
        self._load()
        best = max(gbps, self._read_gbps.pop(key, 0.0))
        self._read_gbps = _newest({**self._read_gbps, key: best})
        self._save()
        return best

    def _load(self) -> None:
        content = self._file.read()
        if not content:
            return  # what names no version is damaged, and is replaced by the next reply
        self._replies = _checked_replies(content.get("replies"))
        speeds = _entries(content.get("read_gbps"))
        self._read_gbps = {key: float(gbps) for key, gbps in speeds.items() if _is_sound(gbps) and gbps > 0}

    def _save(self) -> None:
        replies = {key: [list(vars(reply).values()) for reply in replies] for key, replies in self._replies.items()}
        self._file.write(read_gbps=self._read_gbps, replies=replies)


def history_key(identity: str, threads: int) -> str:
    """Name what replies or measurements are comparable under."""
    return f"{identity}.{threads}"


def identity_of(*parts: object) -> str:
    """Return 16 hexadecimal digits for this machine and what else makes figures comparable."""
    import hashlib

    text = "\0".join([machine_name(), *map(str, parts)])
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def machine_name() -> str:
    """Return what tells this processor from another; never shown."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file.read(1 << 16).splitlines():
            if line.startswith(("model name", "Hardware")):
                return line
    return f"{platform.machine()} {platform.processor()}"


def _checked_replies(found: object) -> dict[str, list[PastReply]]:
    checked = {}
    for key, rows in _entries(found).items():
        replies = [reply for row in rows[-MOST_REPLIES:] if (reply := _past_reply(row))] if type(rows) is list else []
        if replies:
            checked[key] = replies
    return checked


def _entries(found: object) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        return {}
    return _newest({key: value for key, value in found.items() if _KEY.fullmatch(key)})


def _newest(entries: dict[str, T]) -> dict[str, T]:
    return dict(list(entries.items())[-MOST_KEYS:])


def _past_reply(row: object) -> PastReply | None:
    if not isinstance(row, list) or len(row) != 5 or not all(map(_is_sound, row[1:])):
        return None
    # Only a date: kept far enough inside what calendars can show.
    if not _is_sound(row[0], 32_000_000_000) or row[2] <= 0:
        return None
    return PastReply(*map(float, row))


def _is_sound(value: object, largest: float = _LARGEST) -> bool:
    # No isfinite, which raises for an integer of 400 digits; what is no number is in no range either.
    return type(value) in (int, float) and 0 <= value <= largest  # type: ignore[operator]
