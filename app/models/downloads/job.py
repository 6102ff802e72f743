"""A download in a thread for a screen: it gets the price, waits for confirmation, and can be
stopped.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.models.downloads import hub
from app.models.downloads.fetch import DownloadProgress, DownloadStopped
from app.models.downloads.pull import (
    PlannedDownload,
    carry_out,
    prepare,
    price_lines,
)
from app.program.background import in_background
from app.program.refusals import bug_line, exit_code_of
from app.program.settings import Settings
from app.program.web import Web
from app.program.web_refusals import DownloadError
from app.text.clean_text import clean_line
from app.text.record import record

if TYPE_CHECKING:
    from typing_extensions import Self


class DownloadStage(str, Enum):
    """DownloadStage of a download."""

    ASKING = "asking"
    """Files and sizes are requested."""
    READY = "ready"
    """The download waits for confirmation."""
    DOWNLOADING = "downloading"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@record
class JobState:
    """A download at one moment; the text is clean."""

    stage: DownloadStage = DownloadStage.ASKING
    prepared: PlannedDownload | None = None
    progress: DownloadProgress | None = None
    path: Path | None = None
    """Path of the downloaded model."""
    trouble: str = ""
    is_offline: bool = False
    """Whether it failed because the hub cannot be reached."""

    @property
    def is_over(self) -> bool:
        """Whether the download has ended."""
        return self.stage in (DownloadStage.DONE, DownloadStage.STOPPED, DownloadStage.FAILED)


class PullJob:
    """A download.

    Args:
        request: repository or address as typed by the user.

    Attributes:
        word: short name for lines with more content.
        heading: title of the screen; ``begins``, ``stops``, ``kept``, ``done`` and ``not_done`` are
        its texts.
        was_accepted: whether the user confirmed the price.
    """

    word = "download"
    heading = "Download"
    begins = "download"
    stops = "pause"
    kept = "; Jalopy keeps what it has"
    done = "downloaded"
    not_done = "not downloaded"

    def __init__(self, request: str, settings: Settings) -> None:
        self.request = request
        self._settings = settings
        self._decided = threading.Event()
        self._stopped = threading.Event()
        self._web: Web | None = None
        self.was_accepted = False
        self.state = JobState()

    @property
    def is_running(self) -> bool:
        """Whether it is downloading and was not stopped."""
        return self.state.stage is DownloadStage.DOWNLOADING and not self._stopped.is_set()

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, or no was said."""
        return self._stopped.is_set()

    def start(self) -> Self:
        """Start requesting the price."""
        in_background(self._run, "download")
        return self

    def restart(self, request: str = "") -> None:
        """Start again after a failure.

        Args:
            request: another request; empty for the same one.
        """
        self.request = request or self.request
        self._decided = threading.Event()
        self._stopped = threading.Event()
        self.was_accepted = False
        self.state = JobState()
        self.start()

    def price_lines(self) -> list[str]:
        """Return lines about the download, without an expected duration once it is running."""
        prepared = self.state.prepared
        if prepared is not None:
            return price_lines(prepared, has_started=self.state.progress is not None)
        return [self.request]

    @property
    def title(self) -> str:
        """Clean name of the model, as the list of models has it; the request if unknown."""
        from app.models.library.known_models import title_of_repository

        return clean_line(title_of_repository(self.again), 60)

    def refusal(self) -> str:
        """Return why the download cannot start; "" if it can."""
        prepared = self.state.prepared
        if prepared is not None and prepared.trouble:
            return (
                f"Not downloaded: {prepared.trouble}. `jalopy pull {self.request} --anyway` "
                f"downloads "
                f"it anyway"
            )
        is_too_large = prepared is not None and prepared.plan.is_too_large
        if is_too_large:
            return f"{self.not_done.capitalize()}: the disk has too little free space"
        return ""

    @property
    def again(self) -> str:
        """Request that downloads the same again."""
        prepared = self.state.prepared
        if prepared is not None:
            return prepared.again
        return self.request

    def left(self) -> str:
        """Return a line about a download that the end of the program stopped."""
        again = clean_line(self.again, 400)
        return f"the download of {self.title} was paused: `jalopy pull {again}` resumes it"

    def proceed(self) -> None:
        """Confirm the download."""
        self.was_accepted = True
        self._decided.set()

    def stop(self) -> None:
        """Stop or decline the download; the part is kept."""
        self._stopped.set()
        self._decided.set()
        if self._web is not None:
            self._web.give_up()  # otherwise a read from a slow server would hold the part

    def _pause(self, pause_s: float) -> None:
        """Wait before another attempt. Raises DownloadStopped: the user stopped."""
        if self._stopped.wait(pause_s):
            raise DownloadStopped(clean_line(self.request, 100))

    def _run(self) -> None:
        try:
            self._work()
        except DownloadStopped as error:
            self._set_state(stage=DownloadStage.STOPPED, trouble=str(error))
        except Exception as error:
            if exit_code_of(error) is None:
                line = bug_line(error)
            else:
                line = str(error)
            is_offline = isinstance(error, DownloadError) and error.is_hub_away
            trouble = clean_line(line, 280)
            self._set_state(stage=DownloadStage.FAILED, trouble=trouble, is_offline=is_offline)

    def _ask(self, prepared: PlannedDownload) -> bool:
        """Wait for confirmation; return False if the user declines."""
        self._set_state(stage=DownloadStage.READY, prepared=prepared)
        self._decided.wait()
        self._set_state(
            stage=DownloadStage.STOPPED if self.is_stopped else DownloadStage.DOWNLOADING
        )
        return not self.is_stopped

    def _work(self) -> None:
        web = self._web = hub.connect(pause=self._pause)
        prepared = prepare(self.request, self._settings, web)
        if prepared.here is not None:
            self._set_state(stage=DownloadStage.DONE, prepared=prepared, path=prepared.here)
            return
        if not self._ask(prepared):
            return
        result = carry_out(prepared, web, self._report)
        reason = result.header.reason
        if reason:
            trouble = f"Downloaded, but Jalopy cannot open it: {clean_line(reason, 200)}"
            self._set_state(stage=DownloadStage.FAILED, trouble=trouble)
            return
        trouble = ""
        if result.encoder_trouble:
            trouble = f"It will not see pictures: {result.encoder_trouble}"
        self._set_state(stage=DownloadStage.DONE, path=result.path, trouble=trouble)

    def _report(self, progress: DownloadProgress) -> None:
        if self._stopped.is_set():
            raise DownloadStopped(progress.name) from None
        self._set_state(progress=progress)

    def _set_state(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)
