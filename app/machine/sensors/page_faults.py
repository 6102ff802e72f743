"""Major page faults of this process: pages that had to come from disk; and the bytes that came from
there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from app.machine.sensors.cached_reading import Rate

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def major_faults() -> int | None:
    """Return how many there were since the start of the process; None where the system does not
    count them."""
    if resource is None:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


LEAST_DISK_BYTES_PER_S = 1 << 20
"""Less is not worth a word: a page now and then."""


class DiskRate(Rate):
    """Bytes a second that this process has disks read: its maps' pages, missed or asked for ahead.

    Linux only.
    """

    def __init__(self, source: Path = Path("/proc/self/io")) -> None:
        super().__init__(self._read)
        self._source = source

    def _read(self) -> int:
        fields = dict(line.split(": ") for line in self._source.read_text("ascii").splitlines())
        return int(fields["read_bytes"])


class FaultLog:
    """Which tokens of a reply came with major faults.

    Written by the engine's thread, read by any.
    """

    def __init__(self) -> None:
        self.prompt = 0
        """Faults while the prompt was read."""
        self.tokens: list[tuple[int, int]] = []
        """(number of the token, faults before it), only where there were any."""
        self._before = major_faults()

    @property
    def total(self) -> int | None:
        """All faults of the reply; None where the system does not count them."""
        if self._before is None:
            return None
        return self.prompt + sum(count for _, count in self.tokens)

    def note(self, token: int) -> None:
        """Book what came since the last call to a token, 0 for the prompt."""
        now = major_faults()
        if now is None or self._before is None or now == self._before:
            return
        count = now - self._before
        self._before = now
        if token == 0:
            self.prompt += count
        else:
            self.tokens.append((token, count))

    def by_token(self) -> dict[int, int]:
        """Return faults by number of the token, the first token being 0."""
        found = Counter[int]()
        for token, count in list(
            self.tokens
        ):  # the last token may be there twice: what came after it counts too
            found[token - 1] += count
        return found
