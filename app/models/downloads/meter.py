"""Measurement of the speed of a download, for the expected time of the next one."""

from __future__ import annotations

import time

from app.models.downloads.fetch import DownloadProgress, Report
from app.program.state import remember_download_speed

_LEAST_BYTES = 4 << 20
_LEAST_S = 1.0
"""Smallest amount and shortest time from which a speed is remembered."""


class SpeedMeter:
    """Meter between a download and its report.

    Args:
        report: function that gets the progress afterwards.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._start: tuple[float, int] | None = None
        self._end = (0.0, 0)
        """Times in seconds and bytes of the first and the last progress."""

    def report(self, progress: DownloadProgress) -> None:
        """Note the progress and pass it on."""
        if progress.stage == "download":
            self._end = (time.monotonic(), progress.done_bytes)
            self._start = self._start or self._end
        self._report(progress)

    def remember(self) -> None:
        """Save the speed, unless too little was downloaded."""
        if self._start is None:
            return
        duration_s = self._end[0] - self._start[0]
        n_bytes = self._end[1] - self._start[1]
        if duration_s >= _LEAST_S and n_bytes >= _LEAST_BYTES:
            remember_download_speed(n_bytes / duration_s)
