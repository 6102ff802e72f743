"""The processes in which forms are compiled, seen from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import psutil

PATIENCE_S = 60.0


def until(holds: Callable[[], object]) -> None:
    """Wait for something that happens in another process."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.01)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs or waits."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def compiling() -> list[psutil.Process]:
    """Return the processes of single forms that belong to this one."""
    found = []
    for one in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if any("forms/sandbox" in word or "forms.sandbox" in word for word in one.cmdline()):
                found += one.children()
    return found
