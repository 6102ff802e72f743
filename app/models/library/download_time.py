"""Expected time of a download, by the speed of the last one."""

from __future__ import annotations

from app.program.state import load_state
from app.text import figures


def download_time(n_bytes: int) -> str:
    """Return how long a download will take, and at which speed."""
    measured_bps = load_state()[0].download_bps
    if not measured_bps:
        return figures.time_on_a_line(n_bytes)
    duration = figures.whole_seconds(n_bytes / measured_bps)
    return f"about {duration} at {figures.size(measured_bps)}/s, as measured"
