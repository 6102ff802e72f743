"""The one download that goes on while its screen is left: what it says of itself elsewhere, and how it ends.

The application has one from its start, so the client is imported with the first download and not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.text.clean_text import clean_line

if TYPE_CHECKING:
    from app.downloads.job import PullJob


class BackgroundDownload:
    """Holds the download, of which there is at most one at a time."""

    def __init__(self) -> None:
        self.job: PullJob | None = None
        self._is_told = True

    @property
    def is_running(self) -> bool:
        """Whether bytes are coming."""
        return self.job is not None and self.job.is_running

    def take(self, job: PullJob) -> None:
        """Look after a download that has been started."""
        self.job, self._is_told = job, False

    def stop(self) -> None:
        """Stop it; what came is kept."""
        if self.job is not None:
            self.job.stop()

    def word(self) -> str:
        """Say in a word or two how far it is, for a line that has more to show; "" while nothing comes."""
        progress = self.job.state.progress if self.job is not None and self.is_running else None
        if progress is None or not progress.total_bytes:
            return "download" if self.is_running else ""
        return f"download {100 * progress.done_bytes // progress.total_bytes} %"

    def line(self) -> str:
        """Say what comes and how far it is; "" while nothing does."""
        if self.job is None or not self.is_running:
            return ""
        from app.downloads.pull import progress_text

        progress = self.job.state.progress
        return f"{self.title}: {progress_text(progress) if progress is not None else 'begins'}"

    @property
    def title(self) -> str:
        """Name of the download, clean."""
        return clean_line(self._asked_for(), 60)

    def _asked_for(self) -> str:
        """Return what to ask for to get the same again."""
        if self.job is None:
            return ""
        prepared = self.job.state.prepared
        return prepared.again if prepared is not None else self.job.what

    def take_ending(self, is_seen: bool = False) -> tuple[str, bool] | None:
        """Return once how it ended, and whether badly; None where nothing need be said, as on its own screen."""
        if self.job is None or self._is_told or not self.job.state.is_over:
            return None
        from app.downloads.job import Stage

        self._is_told = True
        state = self.job.state
        if is_seen or not self.job.was_accepted or state.stage is Stage.STOPPED:
            return None
        if state.stage is Stage.DONE:
            return f"{self.title} is here and checked", False
        return f"{self.title} was not downloaded: {state.trouble}", True

    def leave(self) -> str:
        """Stop what runs because everything ends, and say how it goes on; "" where nothing ran."""
        if not self.is_running:
            return ""
        again = clean_line(self._asked_for(), 400)
        self.stop()
        return f"the download of {self.title} was stopped; what came is kept: `jalopy pull {again}` goes on from there"
