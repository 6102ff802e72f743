"""Memory in use: weights of the file, KV cache, the program's own; and what is available."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.machine.paced import Paced, or_none
from app.machine.page_faults import DiskRate
from app.machine.records import ModelFacts

PERIOD_S = 0.9
_MAX_STATUS_BYTES = 1 << 16


class Memory:
    """Readings of memory. ``own``: the system's files on this process, which alone tell allocated memory from files."""

    def __init__(self, source: Any, process: Any, own: Path, available: Callable[[], int] | None = None) -> None:
        self._source, self._process, self._status = source, process, own / "status"
        self._available = available or (lambda: int(source.virtual_memory().available))
        self._facts: ModelFacts | None = None
        self._disk = DiskRate(own / "io")
        self._resident = Paced(self._read_resident, PERIOD_S)
        self._weights = Paced(self._read_weights, PERIOD_S)
        self._kv = Paced(self._read_kv, PERIOD_S)

    def of_model(self, facts: ModelFacts | None, now_s: float) -> tuple[int | None, int | None]:
        """Return the bytes of weights and of the KV cache that lie in memory."""
        if facts is not self._facts:
            self._facts = facts
            self._weights, self._kv = Paced(self._read_weights, PERIOD_S), Paced(self._read_kv, PERIOD_S)
        return self._weights.get(now_s), self._kv.get(now_s)

    def of_program(self, now_s: float, weights: int | None, kv: int | None) -> tuple[int | None, int | None]:
        """Return the resident bytes of the process, and what is left of them without weights, files and cache."""
        resident = self._resident.get(now_s)
        if resident is None:
            return None, None
        total, not_of_files = resident
        if not_of_files is None:
            return total, None
        copied = (weights or 0) if self._facts is not None and self._facts.weights_mode == "huge" else 0
        return total, max(0, not_of_files - copied - (kv or 0))

    def available_bytes(self) -> int | None:
        """Return the memory that is available without swapping others out."""
        return or_none(self._available)

    def swap_used_bytes(self) -> int | None:
        """Return how much is swapped out, by all programs; None without swap."""
        swap = or_none(lambda: self._source.swap_memory())
        return int(swap.used) if swap is not None and swap.total else None

    def disk_bytes_per_s(self, now_s: float, interval_s: float) -> float | None:
        """Return what came from disk since the last call, a second."""
        rate = self._disk.since_last(now_s)
        return rate if interval_s > 0 else None

    def _read_weights(self) -> int | None:
        return self._facts.resident_weight_bytes() if self._facts is not None else None

    def _read_kv(self) -> int | None:
        return self._facts.resident_kv_bytes() if self._facts is not None else None

    def _read_resident(self) -> tuple[int, int | None]:
        """Return all resident bytes, and those that the program allocated; None where files' are not told from them."""
        return int(self._process.memory_info().rss), or_none(self._read_allocated)

    def _read_allocated(self) -> int | None:
        with self._status.open(encoding="ascii", errors="replace") as file:
            lines = file.read(_MAX_STATUS_BYTES).splitlines()
        found = {line.split(":")[0]: line for line in lines if line.startswith(("RssAnon:", "RssShmem:"))}
        if len(found) != 2:
            return None
        return sum(1024 * int(line.split()[1]) for line in found.values())
