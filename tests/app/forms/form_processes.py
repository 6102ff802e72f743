"""Search for processes that compile forms."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psutil

PATIENCE_S = 60.0


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition in another process holds."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "the condition was not met in time"
        time.sleep(0.01)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process is alive."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def compiling() -> list[psutil.Process]:
    """Return the processes of single forms below this process."""
    processes = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if any("forms/sandbox" in word or "forms.sandbox" in word for word in child.cmdline()):
                processes += child.children()
    return processes
