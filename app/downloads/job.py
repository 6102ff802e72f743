"""A download in a thread of its own, for a screen: it asks for the price, waits for a yes, and can be stopped."""

from __future__ import annotations

import threading
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from app.downloads import hub
from app.downloads.fetch import DownloadProgress, Stopped
from app.downloads.pull import Prepared, carry_out, prepare
from app.downloads.web import Web
from app.program.background import in_background
from app.program.refusals import bug_line, exit_code_of
from app.program.settings import Settings
from app.text.clean_text import clean_line
from app.text.record import record


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
    prepared: Prepared | None = None
    progress: DownloadProgress | None = None
    path: Path | None = None
    """Of the model, once it is here."""
    trouble: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.stage in (Stage.DONE, Stage.STOPPED, Stage.FAILED)


class PullJob:
    """One download. ``what``: a repository or an address, as the user typed it."""

    def __init__(self, what: str, settings: Settings) -> None:
        self.what = what
        self._settings = settings
        self._answered, self._stopped = threading.Event(), threading.Event()
        self._web: Web | None = None
        self.was_accepted = False
        """Whether somebody said yes to the price."""
        self.state = JobState()

    @property
    def is_running(self) -> bool:
        """Whether it is downloading and was not stopped."""
        return self.state.stage is Stage.DOWNLOADING and not self._stopped.is_set()

    def start(self) -> PullJob:
        """Begin to ask for the price."""
        in_background(self._run, "download")
        return self

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
            raise Stopped(clean_line(self.what, 100))

    def _run(self) -> None:
        try:
            self._web = hub.connect(pause=self._pause)
            self._pull(self._web)
        except Stopped as error:
            self._note(stage=Stage.STOPPED, trouble=str(error))
        except Exception as error:
            line = bug_line(error) if exit_code_of(error) is None else str(error)
            self._note(stage=Stage.FAILED, trouble=clean_line(line, 280))

    def _pull(self, web: Web) -> None:
        prepared = prepare(self.what, self._settings, web)
        if prepared.here is not None:
            self._note(stage=Stage.DONE, prepared=prepared, path=prepared.here)
            return
        self._note(stage=Stage.READY, prepared=prepared)
        self._answered.wait()
        if self._stopped.is_set():
            self._note(stage=Stage.STOPPED)
            return
        self._note(stage=Stage.DOWNLOADING)
        path, header = carry_out(prepared, web, self._report)
        if header.reason:
            trouble = f"it is here, but cannot be opened: {clean_line(header.reason, 200)}"
            self._note(stage=Stage.FAILED, trouble=trouble)
        else:
            self._note(stage=Stage.DONE, path=path)

    def _report(self, progress: DownloadProgress) -> None:
        if self._stopped.is_set():
            raise Stopped(progress.name) from None
        self._note(progress=progress)

    def _note(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)
