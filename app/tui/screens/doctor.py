"""The doctor: findings about machine, terminal and the loaded model, as `jalopy doctor` prints them.

What is read from files comes at once; what is measured comes when the engine's thread is free.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from app.chat.commands import Examine
from app.chat.status import Activity
from app.doctor import report
from app.doctor.read_machine import read_clock, read_cores, read_disk, read_memory
from app.doctor.read_terminal import read_terminal
from app.doctor.readings import Readings
from app.program.background import in_background
from app.text.clean_text import clean_line
from app.text.figures import size
from app.tui.bindings import bindings
from app.tui.screens.surroundings import Surroundings
from app.tui.widgets.status_line import activity_text

if TYPE_CHECKING:
    from app.doctor.examine import Examination

LOOK_PERIOD_S = 0.3
"""How often the screen looks whether the readings and the engine's answer are there."""
_TITLE = "Doctor"


class DoctorScreen(Screen[None]):
    """Lists findings; examines again on a key."""

    CSS_PATH = "doctor.tcss"
    AUTO_FOCUS = "#doctor"
    BINDINGS: ClassVar[list[BindingType]] = bindings("doctor")

    def __init__(self, around: Surroundings) -> None:
        super().__init__()
        self._settings, self._keymap = around.settings, around.keymap
        self._bridge, self._turns = around.bridge, around.turns
        self._readings: Readings | None = None
        self._examination: Examination | None = None
        self._reading: Future[Readings] | None = None
        self._answer: Future[Examination] | None = None
        self._trouble = ""
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """Lay out title, findings and keys."""
        yield Static(Content(_TITLE), markup=False, id="doctor-title")
        with VerticalScroll(id="doctor"):
            yield Static(markup=False, id="doctor-findings")
            yield Static(markup=False, id="doctor-model")
        hint = self._keymap.hint
        keys = (hint("doctor.leave", "back"), hint("doctor.examine", "examine again"), "up, down scroll")
        yield Static(Content(" · ".join(filter(None, keys))), markup=False, id="doctor-keys")

    def on_mount(self) -> None:
        """Make the timer that waits for the readings and for the engine."""
        self._timer = self.set_interval(LOOK_PERIOD_S, self._look_for_answers, pause=True)

    def on_screen_resume(self) -> None:
        """Look at the machine as it is now, or go on waiting for the engine."""
        if self._answer is None:
            self.action_examine()
        elif self._timer is not None:
            self._timer.resume()

    def on_screen_suspend(self) -> None:
        """Ask nothing while nobody looks."""
        if self._timer is not None:
            self._timer.pause()

    def on_resize(self, event: Resize) -> None:
        """Fold the lines anew."""
        self.call_after_refresh(self._show)

    def action_examine(self) -> None:
        """Look again, at everything."""
        if self._answer is not None:
            return
        self._examination, self._trouble = None, ""
        self._answer = Future()
        if not self._bridge.send(Examine(self._answer)):
            again = self._keymap.hint("doctor.examine", "tries again")
            self._answer, self._trouble = None, "; ".join(filter(None, ("the engine has too much to do", again)))
        self._reading = in_background(self._read, "doctor")
        if self._timer is not None:
            self._timer.resume()
        self._show()

    def _read(self) -> Readings:
        """Read the machine, away from the screen's thread: it watches the load for a moment."""
        model, columns_rows = self._turns.model, (self.app.size.width, self.app.size.height)
        return Readings(
            cores=read_cores(),
            clock=read_clock(),
            memory=read_memory(),
            terminal=read_terminal(os.environ, True, self.app.console.encoding, columns_rows),
            disk=read_disk(model.path) if model is not None else None,
            wanted_threads=self._settings.threads,
        )

    def _look_for_answers(self) -> None:
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            if reading.exception() is None:
                self._readings = reading.result()
                self._show()
        if self._answer is not None and self._answer.done():
            self._take(self._answer)
        if self._reading is None and self._answer is None and self._timer is not None:
            self._timer.pause()
        self.query_one("#doctor-title", Static).update(Content(self._title()))

    def _take(self, answer: Future[Examination]) -> None:
        self._answer, error = None, answer.exception()
        if error is None:
            self._examination = answer.result()
        else:
            self._trouble = clean_line(f"not measured: {type(error).__name__}: {error}", 200)
        self._show()

    def _show(self) -> None:
        if not self.is_mounted:
            return
        width = max(40, self.size.width - 3)
        self.query_one("#doctor-title", Static).update(Content(self._title()))
        self.query_one("#doctor-findings", Static).update(Content("\n".join(self._finding_lines(width))))
        self.query_one("#doctor-model", Static).update(Content("\n".join(self._model_lines(width))))

    def _title(self) -> str:
        if self._answer is None:
            return f"{_TITLE}: {self._trouble}" if self._trouble else _TITLE
        status = self._bridge.status
        if status.activity is Activity.COMPILING:
            return f"{_TITLE}: getting ready for this CPU (once), {activity_text(status, self._bridge.now_s())}"
        return f"{_TITLE}: {'waiting for the engine' if status.is_busy else 'measuring'} ..."

    def _finding_lines(self, width: int) -> list[str]:
        if self._readings is None:
            return ["looking around ..."]
        engine = self._examination.engine if self._examination else None
        findings = report.all_findings(replace(self._readings, engine=engine))
        lines = [report.summary(findings), ""]
        for finding in findings:
            lines += report.finding_lines(finding, width)
        return lines

    def _model_lines(self, width: int) -> list[str]:
        found = self._examination
        if found is None:
            return []
        lines = []
        if found.needs is not None:
            lines.append(f"{report.fit_title(found.needs)} ({size(found.needs.weights_bytes)})")
            for finding in report.fit_findings(found, self._settings.kv_type_or_default):
                lines += report.finding_lines(finding, width)
        return lines + report.advice_lines(found)
