"""Major page faults of this process: pages that had to come from disk; and the bytes that came from there."""

from __future__ import annotations

from pathlib import Path

from app.machine.paced import or_none

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]


def major_faults() -> int | None:
    """Return how many there were since the start of the process; None where the system does not count them."""
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_majflt


LEAST_DISK_BYTES_PER_S = 1 << 20
"""Less is not worth a word: a page now and then."""


class DiskRate:
    """How fast this process has disks read: its maps' pages, missed or asked for ahead. Linux only."""

    def __init__(self, source: Path = Path("/proc/self/io")) -> None:
        self._source = source
        self._before: tuple[float, int] | None = None

    def since_last(self, now_s: float) -> float | None:
        """Return bytes a second since the last call; None at the first, and where the system does not count them."""
        n_bytes, before = or_none(self._read), self._before
        self._before = None if n_bytes is None else (now_s, n_bytes)
        if n_bytes is None or before is None or now_s <= before[0]:
            return None
        return max(0, n_bytes - before[1]) / (now_s - before[0])

    def _read(self) -> int:
        fields = dict(line.split(": ") for line in self._source.read_text("ascii").splitlines())
        return int(fields["read_bytes"])


class FaultLog:
    """Which tokens of a reply came with major faults. Written by the engine's thread, read by any.

    Attributes:
        prompt: faults while the prompt was read.
        tokens: (number of the token, faults before it), only where there were any.
    """

    def __init__(self) -> None:
        self.prompt = 0
        self.tokens: list[tuple[int, int]] = []
        self._before = major_faults()

    @property
    def total(self) -> int | None:
        """All faults of the reply; None where the system does not count them."""
        return None if self._before is None else self.prompt + sum(count for _, count in self.tokens)

    def note(self, token: int) -> None:
        """Book what came since the last call to a token, 0 for the prompt."""
        now = major_faults()
        if now is None or self._before is None or now == self._before:
            return
        count, self._before = now - self._before, now
        if token == 0:
            self.prompt += count
        else:
            self.tokens.append((token, count))

    def by_token(self) -> dict[int, int]:
        """Return faults by number of the token, the first token being 0."""
        found: dict[int, int] = {}
        for token, count in list(self.tokens):  # the last token may be there twice: what came behind it counts too
            found[token - 1] = found.get(token - 1, 0) + count
        return found
