"""Low-power mode: fewer redraws and no animation, by Textual's own switches.

Textual reads them when it is imported, so this must run first.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from contextlib import suppress

from app.machine.sensors.cached_reading import or_none

# Textual's 60 frames per second stay: the transcript draws at most five times a second anyway, and
# a key just after such a drawing waits for the next frame (95th percentile 60 ms; at 30 frames 79
# to 108 ms).
LOW_POWER_SWITCHES = {"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_SMOOTH_SCROLL": "0"}
FEW_CORES = 2


def prepare_environment(low_power: str, environ: MutableMapping[str, str] = os.environ) -> bool:
    """Set Textual's switches as the setting says, and return whether low-power mode is on.

    Variables that the user has set stay.
    """
    is_low_power = low_power == "on" or (low_power == "auto" and is_weak_machine())
    if is_low_power:
        for name, value in LOW_POWER_SWITCHES.items():
            environ.setdefault(name, value)
    return is_low_power


def is_weak_machine() -> bool:
    """Whether the machine runs on battery, or has at most two cores."""
    # this check needs no import and is enough for the weakest machines
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):  # a sandbox may forbid this
            if len(os.sched_getaffinity(0)) <= FEW_CORES:
                return True
    import psutil

    n_cores = or_none(lambda: psutil.cpu_count(logical=False) or psutil.cpu_count()) or 1
    return n_cores <= FEW_CORES or is_on_battery()


def is_on_battery() -> bool:
    """Whether the machine runs on battery, as far as is known."""
    import psutil

    if hasattr(psutil, "sensors_battery"):
        battery = or_none(psutil.sensors_battery)
    else:
        battery = None
    return battery is not None and battery.power_plugged is False
