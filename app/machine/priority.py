"""Priority of the program among other programs."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

LOW_NICENESS = 10
"""Niceness of low priority: another busy program gets about ten times the share of a core."""


def is_low(priority: str, command: str) -> bool:
    """Whether a command runs with low priority.

    Args:
        priority: value of the setting: "low", "normal", or "auto", which is low for a server alone.
    """
    return priority == "low" or (priority == "auto" and command == "serve")


def lower_priority() -> None:
    """Let other programs go first, in this thread and all threads and processes that it starts.

    A system that does not allow it changes nothing.
    """
    if sys.platform == "win32":
        return
    with suppress(OSError):
        os.nice(max(0, LOW_NICENESS - os.nice(0)))
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
