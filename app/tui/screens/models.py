"""The models screen: which models fit, how fast they are, and opening or downloading one.

A thread finds and reads the files (``app.models.library.scan``); the screen polls its result.
"""

from __future__ import annotations

import os
import re
from asyncio import wrap_future
from concurrent.futures import Future
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from app.machine.sensors.reply_history import Basis
from app.models.library import list_rows as rows
from app.models.library.delete_model import delete_model, question, refusal
from app.models.library.inspect import report_of_file
from app.models.library.listing import ModelEntry, Outlook
from app.models.library.scan import ModelScan, ScanResult
from app.models.library.speed import ESTIMATE
from app.program.background import in_background
from app.program.refusals import bug_line, exit_code_of, shown_line
from app.program.remote_model import ModelPlace
from app.text import figures
from app.text.clean_text import clean_line
from app.text.glyphs import ASCII
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.lines import Line, Span, SpanRole
from app.tui.keymap import Keymap
from app.tui.screens import make_screen
from app.tui.screens.list_screen import ListScreen
from app.tui.textual_hacks import dismiss_once
from app.tui.widgets import model_rows

if TYPE_CHECKING:
    from app.models.downloads.job import PullJob

_REPOSITORY_NAME = re.compile(r"[^/ ]+/[^/ ]+")
_NO_MODEL = (
    "No model found. Download one of these, or add your folder to model_directories in the "
    "settings."
)


@cache
def _names_of(path: str) -> frozenset[str]:
    """Return a path as given, as an absolute path and with links resolved."""
    return frozenset((path, os.path.abspath(path), os.path.realpath(path)))


class ModelsScreen(ListScreen[ModelEntry]):
    """List of the models on this machine and of models to download."""

    TITLE = "Models"
    SCOPE = "models"
    BINDINGS = bindings(SCOPE)

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__(chat.core.keymap)
        self._chat = chat
        self._engine_thread = chat.core.engine_thread
        self._chat_session = chat.core.chat_session
        self._downloads = chat.downloads
        self._scan: ModelScan | None = None
        self._result = ScanResult()
        self._measurement: Future[Any] | None = None
        self._seen_job: PullJob | None = None
        """Download whose file has had the cursor."""
        self._served: Future[list[ModelEntry]] | None = None
        """Models of the server in the settings; None if there is no server."""

    def start_search(self) -> None:
        """Scan for models again: files may have changed, and a reply may have measured a model."""
        self.stop_search()
        if self._chat.core.settings.server:
            self._served = in_background(
                partial(_served_models, self._chat.core.settings.server), "server"
            )
        extra_paths = {}  # the open model may be outside the folders
        if self._chat_session.model is not None and not self._chat_session.model.server:
            extra_paths[Path(self._chat_session.model.path)] = "open now"
        self._scan = ModelScan(self._chat.core.settings, extra_paths).start()

    def on_screen_suspend(self) -> None:
        """Drop the filter once the screen is left; it stays while a dialog is open."""
        if self.app.current_mode != self.SCOPE:
            self.filter_text = ""
            if not self._downloads.is_running:
                self._seen_job = self._downloads.job

    def stop_search(self) -> None:
        """Cancel the scan."""
        if self._scan is not None:
            self._scan.cancel()

    def poll(self) -> bool:
        """Take the results of the scan, the server and the measurement."""
        if self._measurement is not None and self._measurement.done():
            self._end_measurement(self._measurement)
        if self._served is not None and self._served.done():
            error = self._served.exception()
            if error is not None:
                self.message = shown_line(error)
                self._served = None

        if self._scan is not None:
            result = self._scan.found
        else:
            result = self._result
        # The previous rows stay until a new scan has caught up: a key acts on the marked row.
        has_as_many = len(result.entries) >= len(self._result.entries)
        has_caught_up = has_as_many and result.n_read >= self._result.n_read
        if result.is_done or (not self._result.is_done and has_caught_up):
            self._result = result

        is_server_pending = self._served is not None and not self._served.done()
        return (
            not result.is_done
            or is_server_pending
            or self._measurement is not None
            or self._downloads.is_running
        )

    def _end_measurement(self, measurement: Future[Any]) -> None:
        self._measurement = None
        error = measurement.exception()
        if error is not None:
            self.message = clean_line(f"not measured: {type(error).__name__}: {error}", 120)
        elif measurement.result() is not None:
            engine = measurement.result().engine
            if engine.busy_words:
                basis = "the best measured speed" if engine.best_gbps else "typical speeds"
                self.message = f"This machine is {engine.busy_words}. Estimates use {basis}"
        self.start_search()

    def items(self) -> tuple[ModelEntry, ...]:
        """Return the models whose rows contain all words of the filter."""
        if self._served is not None and self._served.done():
            served = self._served.result()
        else:
            served = []
        return tuple(
            entry for entry in (*served, *self._result.entries) if entry.matches(self.filter_text)
        )

    def is_same(self, item: ModelEntry, other_item: ModelEntry) -> bool:
        """Whether two entries are the same file or the same download."""
        return (item.model, item.repository) == (other_item.model, other_item.repository)

    def is_start(self, item: ModelEntry) -> bool:
        """Whether an entry is the newly downloaded model, or else the open one."""
        job = self._downloads.job
        if job is not None and job is not self._seen_job and job.state.path is not None:
            return item.is_here and str(item.model) in _names_of(str(job.state.path))
        return self._is_open(item)

    def _is_open(self, item: ModelEntry) -> bool:
        model = self._chat_session.model
        if model is None or not item.is_here:
            return False
        return str(item.model) in _names_of(model.path)

    def group_of(self, item: ModelEntry) -> str:
        """Return where the model is."""
        if item.served is not None:
            return "On the server"
        if item.is_here:
            return "On this machine"
        return "To download"

    def heading_line(self, columns: int) -> str:
        """Return the names of the columns."""
        return f" {model_rows.heading(columns)}"

    def row_line(self, item: ModelEntry, columns: int) -> Line:
        """Return a model's row, with a mark if it is open."""
        sign = Span(" ")
        if self._is_open(item):
            sign = Span(self._glyphs.here, SpanRole.WRITING)
        return (sign, Span(" "), *model_rows.row(item, columns, self._glyphs))

    def details(self, item: ModelEntry, columns: int) -> tuple[str, list[Line]]:
        """Return the model's title, and lines on its speed, its contents and its path."""
        if self.side_columns:
            return item.title, model_rows.labelled_details(item, columns)
        return item.title, model_rows.details(item, columns)

    def state_line(self) -> str:
        """Return the free memory and its speed."""
        result = self._result
        if not result.available_bytes:
            return ""
        free = f"{figures.size(result.available_bytes)} free"
        if result.read_gbps:
            return f"{free} · memory reads {result.read_gbps:.1f} GB/s"
        return free

    def foot_line(self) -> str:
        """Return what is going on, else a result, else a hint and a legend."""
        result = self._result
        if self.pending_delete is not None:
            return question(self.pending_delete, result.entries)
        if self._measurement is not None:
            if self._engine_thread.status.is_busy:
                return "waiting for the engine ..."
            return "measuring this machine ..."
        if self.message or result.trouble:
            return self.message or result.trouble
        if download := self._downloads.line():
            return download
        if not result.is_done:
            if result.n_files:
                return f"reading models: {result.n_read} of {result.n_files}"
            return "looking for models ..."

        if _REPOSITORY_NAME.search(self.filter_text):
            return f"{self._keymap.first_key('models.download')} downloads {self.filter_text}"
        if result.entries and not self.items():
            return f"No model has all these words in its row: {self.filter_text}"
        if not any(entry.is_here for entry in result.entries):
            return f"{_NO_MODEL} Searched: {', '.join(result.looked_in)}"
        return self._legend(result)

    def _legend(self, result: ScanResult) -> str:
        notes = [f"{ESTIMATE} estimated"]
        has_eyes = any(entry.sees for entry in result.entries)
        if has_eyes and self._glyphs is not ASCII:
            notes.append(f"{self._glyphs.eye} sees")
        outlooks = [entry.outlook for entry in result.entries if entry.outlook is not None]
        if any(outlook.basis is Basis.BUSY for outlook in outlooks):
            notes.append(f"{rows.BUSY} {Basis.BUSY.value}")
        if not result.read_gbps:
            notes.append(f"{self._keymap.first_key('models.measure')} measures")
        elif result.advice:
            notes.append(f"recommended: {result.advice}")
        else:
            notes[0] = rows.LEGEND
        return self._glyphs.between.join(notes)

    def key_words(self, item: ModelEntry | None) -> dict[str, str]:
        """Return the effects of keys, by the names of their actions."""
        if item is None or item.is_here:
            words = {
                "open": "open",
                "inspect": "inspect",
                "download": "download",
                "measure": "measure",
            }
            if item is not None and item.encoder_repository:
                words["download"] = "get its encoder for pictures"
            if item is not None and item.is_short_of_memory:
                words["shrink"] = "make a smaller one"
        else:
            words = {"open": "download", "measure": "measure"}
        if self._downloads.is_running and self._downloads.job is not None:
            words |= {
                "download": f"show the {self._downloads.job.word}",
                "stop_download": "pause" if self._downloads.job.kept else "stop",
            }
            words.pop("shrink", None)
        return {**words, "leave": "back"}

    # ---- actions

    action_rescan = ListScreen.restart_search

    def action_measure(self) -> None:
        """Measure the speed of memory and kernels as soon as the engine is free."""
        if self._measurement is None:
            self._measurement = Future()
            self.message = ""
            if not self._engine_thread.examine(self._measurement):
                self._measurement = None
                self.message = "Not measured: the engine is too busy"
            self._timer.resume()
            self.show()

    def action_open(self) -> None:
        """Open the highlighted model, or download it."""
        entry = self.highlighted()
        if entry is None:
            return
        if entry.is_here and entry.reason:
            self.say(f"Can't open it: {entry.reason}")
        elif entry.is_here:
            self._open(entry.model, entry.title, entry.outlook)
        else:
            self._download(entry.repository)

    def _open(self, path: ModelPlace, title: str, outlook: Outlook | None = None) -> None:
        """Open a model, or say why that is not possible."""
        if self._chat.models.open(path, title, outlook):
            self.message = ""
        else:
            self.message = self._chat.core.busy_line("in the chat ")
        self.show()

    def action_download(self) -> None:
        """Show the running download, or download the typed or highlighted model."""
        entry = self.highlighted()
        running = self._downloads
        if running.is_running and running.job is not None:
            self._show_download(running.job)
        elif _REPOSITORY_NAME.search(self.filter_text):
            self._download(self.filter_text)
        elif entry is not None and not entry.is_here:
            self._download(entry.repository)
        elif entry is not None and entry.encoder_repository:
            self._download(entry.encoder_repository)
        else:
            self.say("Type OWNER/REPO or an address to download, or choose one below To download")

    def action_shrink(self) -> None:
        """Make a smaller file of the highlighted model if it does not fit well in memory."""
        from app.models.downloads.shrink import ShrinkJob

        entry = self.highlighted()
        if entry is not None and entry.is_short_of_memory:
            self._start_job(ShrinkJob(entry, self._chat.core.settings))
        else:
            self.say(
                "Choose a downloaded model that does not fit well: only those can be made smaller"
            )

    def _download(self, source: str) -> None:
        from app.models.downloads.job import PullJob

        self._start_job(PullJob(source, self._chat.core.settings))

    def _start_job(self, job: PullJob) -> None:
        if self._downloads.is_running:
            key = self._keymap.first_key("models.download")
            self.say(f"One download at a time: {key} shows the running one")
            return
        self.message = ""
        self.show()
        self._downloads.take(job)
        self._show_download(job.start())

    def _show_download(self, job: PullJob) -> None:
        self.app.push_screen(make_screen("download", job, self._keymap), self._leave_download)

    def _leave_download(self, path: str | None) -> None:
        if path is not None:
            self._open(Path(path), clean_line(Path(path).name))
        else:
            if self._downloads.is_running:
                self.filter_text = ""
            self._timer.resume()

    def end_download(self, line: str) -> None:
        """Show how the download ended, and scan for the new file."""
        self.message = line
        self.restart_search()

    def action_stop_download(self) -> None:
        """Stop the running download; its part stays on disk."""
        running = self._downloads
        if running.is_running and running.job is not None:
            running.stop()
            if running.job.kept:
                self.say(f"Paused: {running.title}. Download it again to resume")
            else:
                self.say(f"Stopped: {running.title}")

    def action_delete(self) -> None:
        """Ask whether to delete the highlighted model."""
        entry = self.highlighted()
        if entry is None:
            return
        reason = refusal(entry)
        if self._is_open(entry):
            reason = "This model is open: open another one first"
        elif not self._result.is_done:
            reason = "Not yet: the models are still being read"
        if reason:
            self.say(reason)
        else:
            super().action_delete()

    def delete(self, item: ModelEntry) -> None:
        """Delete a model, and its encoder if no other model uses it."""
        try:
            delete_model(item, self._result.entries)
            self.message = f"Deleted: {item.title}"
        except OSError as error:
            self.message = clean_line(f"Not deleted: {error.strerror or error}", 120)
        self.restart_search()

    def action_inspect(self) -> None:
        """Show what the highlighted file contains."""
        entry = self.highlighted()
        if entry is not None and entry.served is not None:
            self.say("This model is on the server, which gives no details")
        elif entry is not None and entry.is_here:
            self.app.push_screen(InspectScreen(entry.path, entry.title, self._keymap))


def _served_models(server: str) -> list[ModelEntry]:
    from app.models.library.served_models import served_models  # imports an HTTP client

    return served_models(server)


class InspectScreen(Screen[None]):
    """Screen with the contents of a model file, as `jalopy inspect` prints them."""

    CSS_PATH = "inspect.tcss"
    BINDINGS = bindings("inspect")
    AUTO_FOCUS = "#inspect"

    def __init__(self, path: Path, title: str, keymap: Keymap) -> None:
        super().__init__()
        self._path = path
        self._title = title
        self._keymap = keymap

    def compose(self) -> ComposeResult:
        """Lay out title, report and keys."""
        yield Static(self._title, markup=False, id="inspect-title")
        with VerticalScroll(id="inspect"):
            yield Static("reading ...", markup=False, id="inspect-report")
        back = self._keymap.first_key("inspect.leave")
        yield Static(f"{back} back · arrows, PgUp, PgDn scroll", markup=False, id="inspect-keys")

    def on_mount(self) -> None:
        """Start to read the file."""
        self.run_worker(self._read())

    async def _read(self) -> None:
        try:
            text = "\n".join(
                await wrap_future(in_background(partial(report_of_file, self._path), "inspect"))
            )
        except Exception as error:
            if exit_code_of(error) is not None:
                reason = str(error)
            else:
                reason = bug_line(error)
            text = clean_line(reason, 300)
        self.query_one("#inspect-report", Static).update(text)

    action_leave = dismiss_once
