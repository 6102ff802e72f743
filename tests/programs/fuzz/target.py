"""A fuzz target: first inputs, a way to change them, and the conditions that must hold for all."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

LONGEST_LINE_CHARS = 300


class Fault(AssertionError):
    """A promise of the program was broken; the message says which."""


class CostFault(Fault):
    """A step took more time or memory than its limit."""


class Watch:
    """Measures what an input costs.

    Args:
        enforces: raise where a limit is exceeded; the test suite measures nothing, since machines
            differ.

    Attributes:
        peak_bytes: most memory that a bounded step took on top of what the process had before.
    """

    def __init__(self, enforces: bool = True) -> None:
        self._enforces = enforces
        self.peak_bytes = 0

    @contextmanager
    def bounded(self, step: str, cpu_s: float, memory_bytes: int) -> Iterator[None]:
        """Limit a step's processor time and memory.

        Raises:
            CostFault: it took more.
        """
        _reset_peak()
        before_bytes = _memory_bytes("VmRSS")
        started_s = time.process_time()
        yield
        took_s = time.process_time() - started_s
        took_bytes = max(0, _memory_bytes("VmHWM") - before_bytes)
        self.peak_bytes = max(self.peak_bytes, took_bytes)
        if self._enforces and took_s > cpu_s:
            raise CostFault(f"{step} took {took_s:.1f} s of processor time, more than {cpu_s:g}")
        if self._enforces and took_bytes > memory_bytes:
            raise CostFault(
                f"{step} took {took_bytes >> 20} MB of memory, more than {memory_bytes >> 20}"
            )


Run = Callable[[bytes, Path, Watch], str]
Mutate = Callable[[Random, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Target:
    """Part of the program that reads untrusted input.

    Attributes:
        seeds: inputs to begin with, the same at every call.
        mutate: makes a new input from one, with others at hand to take pieces from.
        run: gives the program an input, in an empty directory; returns the outcome in a few words
            that do not depend on the input's details, and raises ``Fault`` where something did not
            hold. Any other exception is a fault too.
        source: folders and files, from the project's directory, whose newly reached lines make an
            input worth keeping.
        hang_s: seconds without an answer after which the process counts as hung; generous, for busy
            machines.
    """

    seeds: Callable[[], list[bytes]]
    mutate: Mutate
    run: Run
    source: tuple[str, ...] = ()
    hang_s: float = 120.0


def require_clean_line(message: str) -> str:
    """Check what a user would be shown, and return it without its figures and quoted parts, as an
    outcome."""
    if not message or not message.isprintable():
        raise Fault(f"the message is not one clean line: {message!r}")
    if len(message) > LONGEST_LINE_CHARS:
        raise Fault(f"the message has {len(message)} characters: {message}")
    return kind_of(message)


def kind_of(message: str) -> str:
    """Return a message without the parts that differ from input to input."""
    words = re.findall(r"\S+", message)
    return " ".join(
        word if re.fullmatch(r"[(]?[a-zA-Z'-]+[),:;]?", word) else "#" for word in words
    )[:80]


def _memory_bytes(name: str) -> int:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) << 10
    return 0


def _reset_peak() -> None:
    with suppress(OSError):  # Linux only; elsewhere memory is not measured
        Path("/proc/self/clear_refs").write_text("5")
