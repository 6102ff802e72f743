"""Expected time of a download, by the speed of the last one."""

from __future__ import annotations

from app.program.state import load_state
from app.text import figures

_MINUTES_FROM_S = 120.0
"""Duration from which seconds are left out."""


def download_time(n_bytes: int) -> str:
    """Return how long a download will take, and at which speed."""
    measured_bps = load_state()[0].download_bps
    if not measured_bps:
        return figures.time_on_a_line(n_bytes)
    duration_s = n_bytes / measured_bps
    if _MINUTES_FROM_S <= duration_s < 3600:
        duration = f"{round(duration_s / 60)} min"
    else:
        duration = figures.whole_seconds(duration_s)
    return f"about {duration} at {figures.size(measured_bps)}/s, as measured"
