"""The one download that goes on while its screen is left: what it says of itself elsewhere, and how
it ends.

The application has one from its start, so the client is imported with the first download and not
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.text.clean_text import clean_line

if TYPE_CHECKING:
    from app.models.downloads.job import PullJob


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
        self.job = job
        self._is_told = False

    def stop(self) -> None:
        """Stop it; what came is kept."""
        if self.job is not None:
            self.job.stop()

    def word(self) -> str:
        """Say in a word or two how far it is, for a line that has more to show; "" while nothing
        comes."""
        if self.job is None or not self.is_running:
            return ""
        progress = self.job.state.progress
        if progress is None or not progress.total_bytes:
            return self.job.word
        return f"{self.job.word} {100 * progress.done_bytes // progress.total_bytes} %"

    def line(self) -> str:
        """Say what comes and how far it is; "" while nothing does."""
        if self.job is None or not self.is_running:
            return ""
        from app.models.downloads.pull import progress_text

        progress = self.job.state.progress
        return f"{self.title}: {progress_text(progress) if progress is not None else 'starting'}"

    @property
    def title(self) -> str:
        """Name of the download, clean."""
        if self.job is not None:
            return clean_line(self.job.again, 60)
        return ""

    def take_ending(self, is_seen: bool = False) -> tuple[str, bool] | None:
        """Return once how it ended, and whether badly; None where nothing need be said, as on its
        own screen."""
        if self.job is None or self._is_told or not self.job.state.is_over:
            return None
        from app.models.downloads.job import Stage

        self._is_told = True
        state = self.job.state
        if is_seen or not self.job.was_accepted or state.stage is Stage.STOPPED:
            return None
        if state.stage is Stage.DONE:
            return f"{self.title} {self.job.done}", False
        return f"{self.title} was {self.job.not_done}: {state.trouble}", True

    def leave(self) -> str:
        """Stop what runs because everything ends, and say how it goes on; "" where nothing ran."""
        if self.job is None or not self.is_running:
            return ""
        self.stop()
        return self.job.left()
