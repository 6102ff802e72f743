"""The download that continues while its screen is closed: its progress and its end.

The HTTP client is imported with the first download, not with this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.models.downloads.job import PullJob


class BackgroundDownload:
    """Holder of the download; there is at most one at a time."""

    def __init__(self) -> None:
        self.job: PullJob | None = None
        self._is_reported = True

    @property
    def is_running(self) -> bool:
        """Whether the download is running."""
        return self.job is not None and self.job.is_running

    def take(self, job: PullJob) -> None:
        """Take over a started download."""
        self.job = job
        self._is_reported = False

    def stop(self) -> None:
        """Stop the download; the part is kept."""
        if self.job is not None:
            self.job.stop()

    def word(self) -> str:
        """Return the progress in a word or two, for a line with more content; "" if nothing
        runs.
        """
        if self.job is None or not self.is_running:
            return ""
        progress = self.job.state.progress
        if progress is None or not progress.total_bytes:
            return self.job.word
        return f"{self.job.word} {100 * progress.done_bytes // progress.total_bytes} %"

    def line(self) -> str:
        """Return a line with the title and the progress; "" if nothing runs."""
        if self.job is None or not self.is_running:
            return ""
        from app.models.downloads.pull import progress_text

        progress = self.job.state.progress
        return f"{self.title}: {progress_text(progress) if progress is not None else 'starting'}"

    @property
    def title(self) -> str:
        """Clean name of the download."""
        if self.job is not None:
            return self.job.title
        return ""

    def take_ending(self, is_seen: bool = False) -> tuple[str, bool] | None:
        """Return a line about the end and whether it failed, once; None if there is nothing to
        report.
        """
        if self.job is None:
            return None
        if not self.job.state.is_over:
            self._is_reported = False  # a failed download may have been started again
            return None
        if self._is_reported:
            return None
        from app.models.downloads.job import DownloadStage

        self._is_reported = True
        state = self.job.state
        if is_seen or not self.job.was_accepted or state.stage is DownloadStage.STOPPED:
            return None
        if state.stage is DownloadStage.DONE:
            return f"{self.title} {self.job.done}", False
        return f"{self.title} was {self.job.not_done}: {state.trouble}", True

    def leave(self) -> str:
        """Stop a running download at the end of the program and return a line about it; "" if none
        ran.
        """
        if self.job is None or not self.is_running:
            return ""
        self.stop()
        return self.job.left()
