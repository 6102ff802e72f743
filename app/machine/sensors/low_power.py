"""Fewer redraws and no animation: Textual's own switches, which it reads when it is imported.

So this must run before the first import of Textual, and imports none itself.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from contextlib import suppress

from app.machine.sensors.cached_reading import or_none

# Textual's own 60 frames a second stay: the transcript draws five times a second at most whatever
# this says, and a key that arrives just after such a drawing waits for the next frame (95th
# percentile 60 ms; at 30 frames 79 to 108).
LOW_POWER_SWITCHES = {"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0"}
FEW_CORES = 2


def prepare_environment(low_power: str, environ: MutableMapping[str, str] = os.environ) -> bool:
    """Set the switches that the setting asks for; what the user set in the environment stays.

    True if any are on.
    """
    wanted = low_power == "on" or (low_power == "auto" and is_weak_machine())
    if wanted:
        for name, value in LOW_POWER_SWITCHES.items():
            environ.setdefault(name, value)
    return wanted


def is_weak_machine() -> bool:
    """Whether the machine runs on battery, or interface and engine share two cores or fewer."""
    # The first look costs no import, and answers for the machines that have the least time for one.
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):  # a sandbox may refuse to tell
            if len(os.sched_getaffinity(0)) <= FEW_CORES:
                return True
    import psutil

    n_cores = or_none(lambda: psutil.cpu_count(logical=False) or psutil.cpu_count()) or 1
    return n_cores <= FEW_CORES or is_on_battery()


def is_on_battery() -> bool:
    """Whether the machine runs on battery as far as can be told."""
    import psutil

    if hasattr(psutil, "sensors_battery"):
        battery = or_none(psutil.sensors_battery)
    else:
        battery = None
    return battery is not None and battery.power_plugged is False
