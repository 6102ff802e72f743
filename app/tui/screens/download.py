"""Downloading a model: its price first, then progress with rate and time left.

Who leaves the screen leaves the download to go on (``app.models.downloads.background``); the models screen
leads back here.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from app.models.downloads.job import JobState, PullJob, Stage
from app.models.downloads.pull import progress_text
from app.text import figures
from app.text.clean_text import clean_line
from app.text.glyphs import BLOCKS, choose_glyphs
from app.tui.bindings import bindings
from app.tui.keymap import Keymap
from app.tui.textual_hacks import dismiss_once
from app.tui.widgets.status_line import LOW_ROWS

LOOK_PERIOD_S = 0.25
_BAR_CELLS = 24


class DownloadScreen(ModalScreen[str | None]):
    """Shows a job that has been started, now or earlier; dismissed with the path of a model to
    open, or with None."""

    CSS_PATH = "download.tcss"
    BINDINGS = bindings("download")

    def __init__(self, job: PullJob, keymap: Keymap) -> None:
        super().__init__()
        self._keymap = keymap
        self._job = job
        self._shown = ""

    def compose(self) -> ComposeResult:
        """Lay out the lines."""
        with Vertical(id="download") as box:
            box.border_title = self._job.heading
            yield Static(markup=False, id="download-text")
            yield Static(markup=False, id="download-keys")

    def on_mount(self) -> None:
        """Begin to look at it."""
        self._timer = self.set_interval(LOOK_PERIOD_S, self._look)
        self._look()

    def on_resize(self) -> None:
        """Leave out what has no room, or bring it back; texts that change before the new layout are
        cut off."""
        self.call_after_refresh(self._look)

    def action_proceed(self) -> None:
        """Download it; once it is here, open it."""
        state = self._job.state
        if state.stage is Stage.READY and not self._job.refusal():
            self._job.proceed()
            self._look()
        elif state.stage is Stage.DONE and state.path is not None:
            dismiss_once(self, str(state.path))

    def action_stop(self) -> None:
        """Stop what is coming and keep what came."""
        if self._job.is_running:
            self._job.stop()
            dismiss_once(self, None)

    def action_leave(self) -> None:
        """Go back; what is coming goes on coming, and what was not accepted is dropped."""
        if not self._job.is_running:
            self._job.stop()
        dismiss_once(self, None)

    def _look(self) -> None:
        state = self._job.state
        text = "\n".join(self._lines(state))
        if text != self._shown:
            self._shown = text
            self.query_one("#download-text", Static).update(text)
            self.query_one("#download-keys", Static).update(self._keys(state))
        if state.is_over:
            self._timer.stop()

    def _lines(self, state: JobState) -> list[str]:
        lines = self._job.price_lines()
        if state.stage is Stage.ASKING:
            lines.append("asking for the list of files ...")
        elif state.stage is Stage.READY and self._job.refusal():
            lines.append(self._job.refusal())
        elif state.stage is Stage.DOWNLOADING and state.progress is not None:
            done = state.progress.done_bytes
            total = state.progress.total_bytes
            if self.app.size.height < LOW_ROWS:
                del lines[1:]  # the price was accepted; the keys below need the room
            glyphs = choose_glyphs()
            bar = figures.bar(done, total, _BAR_CELLS)
            bar = bar.replace(BLOCKS.full, glyphs.full).replace(BLOCKS.empty, glyphs.empty)
            lines += ["", bar, progress_text(state.progress)]
        elif state.stage is Stage.DONE:
            if state.progress:
                words = self._job.done.capitalize()
            else:
                words = "It is here already"
            lines += ["", f"{words}: {clean_line(str(state.path), 300)}"]
        if state.trouble:
            lines += ["", state.trouble]
        return lines

    def _keys(self, state: JobState) -> str:
        key = self._keymap.first_key
        yes = key("download.proceed")
        back = key("download.leave")
        if state.stage is Stage.READY and not self._job.refusal():
            return f"{yes} {self._job.begins} · {back} back"
        if state.stage is Stage.DOWNLOADING:
            return f"{back} leaves it running · {key('download.stop')} stops it{self._job.kept}"
        if state.stage is Stage.DONE:
            return f"{yes} opens it · {back} back"
        return f"{back} back"
