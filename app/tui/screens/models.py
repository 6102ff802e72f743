"""The models on this machine: what fits, how fast it would be, and opening another one without
leaving the chat.

Finding and reading happen in a thread (``app.models.library.scan``), whose record the screen looks at
until it is done.
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

from app.models.library import list_rows as rows
from app.models.library.inspect import report_of_file
from app.models.library.listing import ModelEntry, Outlook
from app.models.library.scan import ModelScan, ScanResult
from app.program.background import in_background
from app.program.refusals import bug_line, exit_code_of, shown_line
from app.program.remote_model import ModelPlace
from app.text import figures
from app.text.clean_text import clean_line
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.lines import Line, Span, SpanRole, muted
from app.tui.keymap import Keymap
from app.tui.screens import make_screen
from app.tui.screens.list_screen import ListScreen
from app.tui.textual_hacks import dismiss_once
from app.tui.widgets import model_rows

if TYPE_CHECKING:
    from app.models.downloads.job import PullJob

_LIKE_A_REPOSITORY = re.compile(r"[^/ ]+/[^/ ]+")
_NOTHING = (
    "No model was found. Those listed can be downloaded; model_directories in your settings names "
    "more places."
)


@cache
def _names_of(path: str) -> frozenset[str]:
    """Return what else a file may be listed as that was named from where the shell stood, or by a
    link."""
    return frozenset((path, os.path.abspath(path), os.path.realpath(path)))


class ModelsScreen(ListScreen[ModelEntry]):
    """Lists models while it is shown."""

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
        self._found = ScanResult()
        self._measurement: Future[Any] | None = None
        self._served: Future[list[ModelEntry]] | None = None
        """The models of the server that the settings name, once it has answered."""

    def start_looking(self) -> None:
        """Look again: files come and go, and the last reply may have been the first with its
        model."""
        self.stop_looking()
        if self._chat.core.settings.server:
            self._served = in_background(
                partial(_served_models, self._chat.core.settings.server), "server"
            )
        elsewhere = {}  # it may lie in none of the folders
        if self._chat_session.model is not None and not self._chat_session.model.server:
            elsewhere[Path(self._chat_session.model.path)] = "open now"
        self._scan = ModelScan(self._chat.core.settings, elsewhere).start()

    def stop_looking(self) -> None:
        """End the scan."""
        if self._scan is not None:
            self._scan.cancel()

    def look(self) -> bool:
        """Take what the scan has found; after a measurement, begin a new one."""
        if self._measurement is not None and self._measurement.done():
            measured = self._measurement
            self._measurement = None
            error = measured.exception()
            if error is not None:
                self.said = clean_line(f"not measured: {type(error).__name__}: {error}", 120)
            elif measured.result() is not None and (busy := measured.result().engine.busy_words):
                if measured.result().engine.best_gbps:
                    basis = "the best"
                else:
                    basis = "typical figures"
                self.said = f"{busy}; speeds are estimated from {basis}"
            self.start_looking()
        if (
            self._served is not None
            and self._served.done()
            and (error := self._served.exception()) is not None
        ):
            self.said = shown_line(error)
            self._served = None
        if self._scan is not None:
            found = self._scan.found
        else:
            found = self._found
        # Rows stay while they are looked for again.
        if found.is_done or (not self._found.is_done and found.n_read >= self._found.n_read):
            self._found = found
        is_asking = self._served is not None and not self._served.done()
        return (
            not found.is_done
            or is_asking
            or self._measurement is not None
            or self._downloads.is_running
        )

    def items(self) -> tuple[ModelEntry, ...]:
        """Return the models in whose row all words are."""
        if self._served is not None and self._served.done():
            served = self._served.result()
        else:
            served = []
        return tuple(
            entry for entry in (*served, *self._found.entries) if entry.matches(self.typed)
        )

    def is_same(self, one: ModelEntry, other: ModelEntry) -> bool:
        """Whether they are one file, or one that can be downloaded."""
        return (one.model, one.repository) == (other.model, other.repository)

    def heading_line(self, columns: int) -> str:
        """Name the columns."""
        return f" {model_rows.heading(columns)}"

    def row_line(self, item: ModelEntry, columns: int) -> Line:
        """Mark the model that is open, and those that are not here."""
        loaded = self._chat_session.model
        is_loaded = (
            loaded is not None and item.is_here and str(item.model) in _names_of(loaded.path)
        )
        if is_loaded:
            sign = Span(self._glyphs.here, SpanRole.WRITING)
        else:
            sign = muted(" " if item.is_here else "+")
        return (sign, Span(" "), *model_rows.row(item, columns, self._glyphs))

    def details(self, item: ModelEntry, columns: int) -> tuple[str, list[Line]]:
        """Write the whole name, what is to be expected of it, what it is made of, and where it
        is."""
        return item.title, model_rows.details(item, columns, self._glyphs)

    def state_line(self) -> str:
        """Write free memory and its speed."""
        found = self._found
        if found.read_gbps:
            speed = f" · reads {found.read_gbps:.1f} GB/s"
        else:
            speed = ""
        if found.available_bytes:
            return f"{figures.size(found.available_bytes)} free{speed}"
        return ""

    def foot_line(self) -> str:
        """Say what goes on; else what to do next; else what suits this machine."""
        found = self._found
        key = self._keymap.first_key
        if self._measurement is not None:
            if self._engine_thread.status.is_busy:
                waiting = "waiting for the engine"
            else:
                waiting = "measuring this machine"
            return f"{waiting} ..."
        if self.said or found.trouble:
            return self.said or found.trouble
        if running := self._downloads.line():
            return running
        if not found.is_done:
            read = f"reading headers: {found.n_read} of {found.n_files}"
            if found.n_files:
                return read
            return "looking for models ..."
        if _LIKE_A_REPOSITORY.search(self.typed):
            return f"{key('models.download')} downloads {self.typed}"
        if found.entries and not self.items():
            return f"no model has all these words in its row: {self.typed}"
        if not any(entry.is_here for entry in found.entries):
            return f"{_NOTHING} Looked in: {', '.join(found.looked_in)}"
        if all(entry.is_here for entry in found.entries):
            offers = ""
        else:
            offers = "; + can be downloaded"
        if not found.read_gbps:
            return (
                f"{rows.ESTIMATE} typical speeds; {key('models.measure')} measures this "
                f"machine{offers}"
            )
        if not found.advice:
            return rows.LEGEND
        return f"{rows.ESTIMATE} estimate{offers}. Suits this machine {found.advice}"

    def key_words(self, item: ModelEntry | None) -> dict[str, str]:
        """Models not on this machine can be downloaded, one at a time."""
        if item is None or item.is_here:
            words = {
                "open": "opens",
                "inspect": "inspects",
                "download": "downloads",
                "measure": "measures",
            }
            if item is not None and item.is_short_of_memory:
                words["shrink"] = "makes a smaller one"
        else:
            words = {"open": "downloads", "measure": "measures"}
        if self._downloads.is_running and self._downloads.job is not None:
            words |= {
                "download": f"shows the {self._downloads.job.word}",
                "stop_download": "stops it",
            }
            words.pop("shrink", None)
        return {**words, "leave": "back"}

    # ---- what the user asks for

    action_rescan = ListScreen.begin

    def action_measure(self) -> None:
        """Measure what this machine's memory and kernels do, once the engine is free."""
        if self._measurement is None:
            self._measurement = Future()
            self.said = ""
            if not self._engine_thread.examine(self._measurement):
                self._measurement = None
                self.said = "the engine has too much to do: not measured"
            self._timer.resume()
            self.show()

    def action_open(self) -> None:
        """Open the model under the cursor in place of the present one."""
        entry = self.highlighted()
        if entry is None:
            return
        if entry.is_here and entry.reason:
            self.say(f"cannot be opened: {entry.reason}")
        elif entry.is_here:
            self._open(entry.model, entry.title, entry.outlook)
        else:
            self._download(entry.repository)

    def _open(self, path: ModelPlace, title: str, outlook: Outlook | None = None) -> None:
        """Open a model, or say why not, and leave the filter where the choice stays."""
        if self._chat.models.open(path, title, outlook):
            self.typed = self.said = ""
        else:
            self.said = self._chat.core.busy_line("in the chat ")
        self.show()

    def action_download(self) -> None:
        """Download the repository or address that is typed, else the known model under the
        cursor."""
        entry = self.highlighted()
        running = self._downloads
        if running.is_running and running.job is not None:
            self._show_download(running.job)
        elif _LIKE_A_REPOSITORY.search(self.typed):
            self._download(self.typed)
        elif entry is not None and not entry.is_here:
            self._download(entry.repository)
        else:
            self.say("type OWNER/REPO or an address to download, or go to a row with +")

    def action_shrink(self) -> None:
        """Make a smaller file of the model under the cursor, where memory is short for it."""
        from app.models.downloads.shrink import ShrinkJob

        entry = self.highlighted()
        if entry is not None and entry.is_short_of_memory:
            self._begin(ShrinkJob(entry, self._chat.core.settings))
        else:
            self.say(
                "only a model that is here, and does not fit well, is made smaller: go to its row"
            )

    def _download(self, what: str) -> None:
        from app.models.downloads.job import PullJob

        self._begin(PullJob(what, self._chat.core.settings))

    def _begin(self, job: PullJob) -> None:
        if self._downloads.is_running:
            key = self._keymap.first_key("models.download")
            self.say(f"one download at a time: {key} shows the one that runs")
            return
        self.typed = self.said = ""
        self.show()
        self._downloads.take(job)
        self._show_download(job.start())

    def _show_download(self, job: PullJob) -> None:
        self.app.push_screen(make_screen("download", job, self._keymap), self._leave_download)

    def _leave_download(self, path: str | None) -> None:
        if path is not None:
            self._open(Path(path), clean_line(Path(path).name))
        else:
            self._timer.resume()

    def end_download(self, line: str) -> None:
        """Say how it ended, and look for the new file."""
        self.said = line
        self.begin()

    def action_stop_download(self) -> None:
        """Stop the running download; what came is kept."""
        running = self._downloads
        if running.is_running and running.job is not None:
            running.stop()
            if running.job.kept:
                kept = "; what came is kept, and the same again goes on from there"
            else:
                kept = ""
            self.say(f"stopped: {running.title}{kept}")

    def action_inspect(self) -> None:
        """Show what the file under the cursor holds."""
        entry = self.highlighted()
        if entry is not None and entry.served is not None:
            self.say("it is on the server: nothing more is known of it")
        elif entry is not None and entry.is_here:
            self.app.push_screen(InspectScreen(entry.path, entry.title, self._keymap))


def _served_models(server: str) -> list[ModelEntry]:
    from app.models.library.served_models import served_models  # imports an HTTP client

    return served_models(server)


class InspectScreen(Screen[None]):
    """Shows what a file holds, of a model or of the first part of one, as `jalopy inspect` prints
    it."""

    CSS_PATH = "inspect.tcss"
    BINDINGS = bindings("inspect")
    AUTO_FOCUS = "#inspect"

    def __init__(self, path: Path, title: str, keymap: Keymap) -> None:
        super().__init__()
        # the title is clean
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
        """Begin to read."""
        self.run_worker(self._read())

    async def _read(self) -> None:
        try:
            text = "\n".join(
                await wrap_future(in_background(partial(report_of_file, self._path), "inspect"))
            )
        except Exception as error:
            text = clean_line(
                str(error) if exit_code_of(error) is not None else bug_line(error), 300
            )
        self.query_one("#inspect-report", Static).update(text)

    action_leave = dismiss_once
