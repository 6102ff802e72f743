"""A download in a thread of its own, for a screen: it asks for the price, waits for a yes, and can
be stopped."""

from __future__ import annotations

import threading
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.models.downloads import hub
from app.models.downloads.fetch import DownloadProgress, DownloadStopped
from app.models.downloads.pull import PlannedDownload, carry_out, prepare, price_lines
from app.program.background import in_background
from app.program.refusals import bug_line, exit_code_of
from app.program.settings import Settings
from app.program.web import Web
from app.text.clean_text import clean_line
from app.text.record import record

if TYPE_CHECKING:
    from typing_extensions import Self


class Stage(str, Enum):
    """How far a download is."""

    ASKING = "asking"
    """The hub is asked for files and sizes."""
    READY = "ready"
    """It waits for a yes."""
    DOWNLOADING = "downloading"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


@record
class JobState:
    """A download at one moment; the text is clean."""

    stage: Stage = Stage.ASKING
    prepared: PlannedDownload | None = None
    progress: DownloadProgress | None = None
    path: Path | None = None
    """Of the model, once it is here."""
    trouble: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.stage in (Stage.DONE, Stage.STOPPED, Stage.FAILED)


class PullJob:
    """One download. ``what``: a repository or an address, as the user typed it.

    Attributes:
        word: of the line that has more to show.
        heading: of its screen; ``begins``, ``kept``, ``done`` and ``not_done`` are said of it there
            and elsewhere.
        was_accepted: whether somebody said yes to the price.
    """

    word = "download"
    heading = "Download"
    begins = "download"
    stops = "pause"
    kept = "; Jalopy keeps what it has"
    done = "downloaded"
    not_done = "not downloaded"

    def __init__(self, what: str, settings: Settings) -> None:
        self.what = what
        self._settings = settings
        self._answered = threading.Event()
        self._stopped = threading.Event()
        self._web: Web | None = None
        self.was_accepted = False
        self.state = JobState()

    @property
    def is_running(self) -> bool:
        """Whether it is downloading and was not stopped."""
        return self.state.stage is Stage.DOWNLOADING and not self._stopped.is_set()

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, or no was said."""
        return self._stopped.is_set()

    def start(self) -> Self:
        """Begin to ask for the price."""
        in_background(self._run, "download")
        return self

    def price_lines(self) -> list[str]:
        """Write what will happen, before it does; its name while that is not known."""
        prepared = self.state.prepared
        if prepared is not None:
            return price_lines(prepared)
        return [self.what]

    def refusal(self) -> str:
        """Say why this cannot be begun here; "" where it can."""
        prepared = self.state.prepared
        if prepared is not None and prepared.trouble:
            return (
                f"Not downloaded: {prepared.trouble}. `jalopy pull {self.what} --anyway` downloads "
                f"it anyway"
            )
        is_too_large = prepared is not None and prepared.plan.is_too_large
        if is_too_large:
            return f"{self.not_done.capitalize()}: the disk has too little free space"
        return ""

    @property
    def again(self) -> str:
        """What to ask for to get the same again."""
        prepared = self.state.prepared
        if prepared is not None:
            return prepared.again
        return self.what

    def left(self) -> str:
        """Say what became of it when everything ended, and how it goes on."""
        what = clean_line(self.again, 60)
        again = clean_line(self.again, 400)
        return f"the download of {what} was paused: `jalopy pull {again}` resumes it"

    def proceed(self) -> None:
        """Say yes."""
        self.was_accepted = True
        self._answered.set()

    def stop(self) -> None:
        """Stop, or say no; what came is kept."""
        self._stopped.set()
        self._answered.set()
        if self._web is not None:
            self._web.give_up()  # a read that waits for a slow server would hold the part

    def _pause(self, pause_s: float) -> None:
        """Wait before another attempt. Raises Stopped: there will be none."""
        if self._stopped.wait(pause_s):
            raise DownloadStopped(clean_line(self.what, 100))

    def _run(self) -> None:
        try:
            self._work()
        except DownloadStopped as error:
            self._note(stage=Stage.STOPPED, trouble=str(error))
        except Exception as error:
            if exit_code_of(error) is None:
                line = bug_line(error)
            else:
                line = str(error)
            self._note(stage=Stage.FAILED, trouble=clean_line(line, 280))

    def _ask(self, prepared: PlannedDownload) -> bool:
        """Wait for a yes; False for a no."""
        self._note(stage=Stage.READY, prepared=prepared)
        self._answered.wait()
        self._note(stage=Stage.STOPPED if self.is_stopped else Stage.DOWNLOADING)
        return not self.is_stopped

    def _work(self) -> None:
        web = self._web = hub.connect(pause=self._pause)
        prepared = prepare(self.what, self._settings, web)
        if prepared.here is not None:
            self._note(stage=Stage.DONE, prepared=prepared, path=prepared.here)
            return
        if not self._ask(prepared):
            return
        path, header = carry_out(prepared, web, self._report)
        if header.reason:
            trouble = f"Downloaded, but it cannot be opened: {clean_line(header.reason, 200)}"
            self._note(stage=Stage.FAILED, trouble=trouble)
        else:
            self._note(stage=Stage.DONE, path=path)

    def _report(self, progress: DownloadProgress) -> None:
        if self._stopped.is_set():
            raise DownloadStopped(progress.name) from None
        self._note(progress=progress)

    def _note(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)
