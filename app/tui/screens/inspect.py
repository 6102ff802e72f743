"""Content of a model file, as `jalopy inspect` prints it; read in a background thread."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from app.library.inspect import report_of_file
from app.program.background import in_background
from app.program.refusals import bug_line, exit_code_of
from app.text.clean_text import clean_line
from app.tui.bindings import bindings
from app.tui.keymap import Keymap
from app.tui.textual_hacks import dismiss_once

LOOK_PERIOD_S = 0.1


class InspectScreen(Screen[None]):
    """Shows one file, of a model or of the first part of one; the title is clean."""

    CSS_PATH = "inspect.tcss"
    BINDINGS = bindings("inspect")
    AUTO_FOCUS = "#inspect"

    def __init__(self, path: Path, title: str, keymap: Keymap) -> None:
        super().__init__()
        self._path, self._title, self._keymap = path, title, keymap

    def compose(self) -> ComposeResult:
        """Lay out title, report and keys."""
        yield Static(self._title, markup=False, id="inspect-title")
        with VerticalScroll(id="inspect"):
            yield Static("reading ...", markup=False, id="inspect-report")
        back = self._keymap.first_key("inspect.leave")
        yield Static(f"{back} back · arrows, PgUp, PgDn scroll", markup=False, id="inspect-keys")

    def on_mount(self) -> None:
        """Begin to read."""
        self._report = in_background(partial(report_of_file, self._path), "inspect")
        self._timer = self.set_interval(LOOK_PERIOD_S, self._look)

    def _look(self) -> None:
        if self._report.done():
            self._timer.stop()
            error = self._report.exception()
            if error is None:
                text = "\n".join(self._report.result())
            else:
                text = clean_line(str(error) if exit_code_of(error) is not None else bug_line(error), 300)
            self.query_one("#inspect-report", Static).update(text)

    def action_leave(self) -> None:
        """Go back to the list."""
        dismiss_once(self)
