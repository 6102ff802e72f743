"""Major page faults of this process (pages read from disk), and bytes read from disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from app.machine.sensors.cached_reading import Rate

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def major_faults() -> int | None:
    """Return the major faults since the process started; None if the system does not count them."""
    if resource is None:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


LEAST_DISK_BYTES_PER_S = 1 << 20
"""Rates below this are not worth mentioning."""


class DiskRate(Rate):
    """Bytes per second that this process reads from disks, by page faults and read-ahead.

    Linux only.
    """

    def __init__(self, source: Path = Path("/proc/self/io")) -> None:
        super().__init__(self._read)
        self._source = source

    def _read(self) -> int:
        fields = dict(line.split(": ") for line in self._source.read_text("ascii").splitlines())
        return int(fields["read_bytes"])


class FaultLog:
    """Major faults of a reply by token.

    The engine thread writes it, any thread may read it.
    """

    def __init__(self) -> None:
        self.prompt = 0
        """Faults while the prompt was read."""
        self.tokens: list[tuple[int, int]] = []
        """Token numbers with the faults before them, only if there were any."""
        self._last_total = major_faults()

    @property
    def total(self) -> int | None:
        """All faults of the reply; None where the system does not count them."""
        if self._last_total is None:
            return None
        return self.prompt + sum(count for _, count in self.tokens)

    def note(self, token: int) -> None:
        """Assign the faults since the last call to a token; 0 is the prompt."""
        now = major_faults()
        if now is None or self._last_total is None or now == self._last_total:
            return
        count = now - self._last_total
        self._last_total = now
        if token == 0:
            self.prompt += count
        else:
            self.tokens.append((token, count))

    def by_token(self) -> dict[int, int]:
        """Return the faults by token number, starting at 0."""
        faults = Counter[int]()
        for token, count in list(self.tokens):  # the last token may occur twice
            faults[token - 1] += count
        return faults
