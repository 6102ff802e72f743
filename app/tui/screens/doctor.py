"""The doctor: findings about machine, terminal and the loaded model, as `jalopy doctor` prints them.

What is read from files comes at once; what is measured comes when the engine's thread is free.
"""

from __future__ import annotations

import os
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.events import Resize
from textual.screen import Screen

from app.chat.commands import Examine
from app.chat.status import Activity
from app.doctor import report
from app.doctor.findings import Finding
from app.doctor.readings import Readings, read_clock, read_cores, read_disk, read_memory, read_terminal
from app.program.background import in_background
from app.text.clean_text import clean_line
from app.text.glyphs import choose_glyphs
from app.tui.bindings import bindings
from app.tui.drawing.lines import Line, muted
from app.tui.screens.surroundings import Surroundings
from app.tui.widgets import doctor_cards
from app.tui.widgets.figure_lines import FigureLines, KeyLine, ScreenTitle
from app.tui.widgets.status_line import activity_word

if TYPE_CHECKING:
    from app.doctor.examine import Examination

LOOK_PERIOD_S = 0.3
"""How often the screen looks whether the readings and the engine's answer are there."""
_LEAST_COLUMNS = 30


class DoctorScreen(Screen[None]):
    """Lists findings; examines again on a key."""

    CSS_PATH = "doctor.tcss"
    AUTO_FOCUS = "#doctor"
    BINDINGS = bindings("doctor")

    def __init__(self, around: Surroundings) -> None:
        super().__init__()
        self._settings, self._keymap = around.settings, around.keymap
        self._bridge, self._turns = around.bridge, around.turns
        self._readings: Readings | None = None
        self._examination: Examination | None = None
        self._reading: Future[Readings] | None = None
        self._answer: Future[Examination] | None = None
        self._trouble = ""
        self._wants_unfolded: bool | None = None
        """Whether the user wants what is well listed; None lists it where all of it has room."""
        self._is_unfolded = False
        self._glyphs = choose_glyphs()

    def compose(self) -> ComposeResult:
        """Lay out title, findings and keys."""
        yield ScreenTitle("Doctor", id="doctor-title")
        with VerticalScroll(id="doctor"):
            yield FigureLines("doctor-cards")
        yield KeyLine(id="doctor-keys")

    def on_mount(self) -> None:
        """Make the timer that waits for the readings and for the engine."""
        self._timer = self.set_interval(LOOK_PERIOD_S, self._look_for_answers, pause=True)

    def on_screen_resume(self) -> None:
        """Look at the machine as it is now, or go on waiting for the engine."""
        if self._answer is None:
            self.action_examine()
        else:
            self._timer.resume()

    def on_screen_suspend(self) -> None:
        """Ask nothing while nobody looks."""
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
        if self._reading is None and self._answer is None:
            self._timer.pause()
        self._show_title()

    def _take(self, answer: Future[Examination]) -> None:
        self._answer, error = None, answer.exception()
        if error is None:
            self._examination = answer.result()
        else:
            self._trouble = clean_line(f"not measured: {type(error).__name__}: {error}", 200)
        self._show()

    def action_unfold(self) -> None:
        """Show or hide what is well."""
        self._wants_unfolded = not self._is_unfolded
        self._show()

    def _show(self) -> None:
        if not self.is_mounted:
            return
        self._show_title()
        height = self.query_one("#doctor").outer_size.height
        self._is_unfolded = self._wants_unfolded is not False
        drawn = self._drawn(self.size.width)
        if self._wants_unfolded is None and len(drawn) > height:
            self._is_unfolded = False
            drawn = self._drawn(self.size.width)
        key = self._keymap.first_key
        words = "hides what is fine" if self._is_unfolded else "shows what is fine"
        keys = [(key("doctor.unfold"), words), (key("doctor.examine"), "examines again"), ("arrows", "scroll")]
        self.query_one(KeyLine).tell([*keys, (key("doctor.leave"), "back")])
        # The scroll bar takes a column where there is more than has room.
        self.query_one("#doctor-cards", FigureLines).show(
            drawn if len(drawn) <= height else self._drawn(self.size.width - 1)
        )

    def _show_title(self) -> None:
        model = self._turns.model
        about = f"{model.name} · {model.quantization or model.server}" if model is not None else "no model is open"
        self.query_one(ScreenTitle).tell(about, doctor_cards.state_line(self._findings(), self._progress()))

    def _progress(self) -> str:
        if self._answer is None:
            return self._trouble
        status = self._bridge.status
        if status.activity is Activity.COMPILING:
            return f"{activity_word(status)} for this CPU (once)"
        return f"{'waiting for the engine' if status.is_busy else 'measuring'} ..."

    def _findings(self) -> list[Finding]:
        if self._readings is None:
            return []
        engine = self._examination.engine if self._examination else None
        return report.all_findings(replace(self._readings, engine=engine))

    def _drawn(self, width: int) -> list[Line]:
        if self._readings is None:
            return [(muted(" looking around ..."),)]
        unfold = self._keymap.hint("doctor.unfold", "shows them")
        kv_type = self._settings.kv_type_or_default
        what = self._findings(), self._examination, kv_type, self._is_unfolded, unfold, self._glyphs
        return doctor_cards.drawn(doctor_cards.cards(*what), max(_LEAST_COLUMNS, width))
