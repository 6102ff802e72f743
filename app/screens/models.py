"""The models on this machine: what fits, how fast it would be, and opening another one without leaving the chat.

Typing narrows the list. Finding and reading happen in a thread of their own (``app.models.scan``); the screen looks at
its record while it runs, and at nothing once it is done.
"""

from __future__ import annotations

import re
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app import figures
from app.actions import bindings
from app.bridge import Examine
from app.clean_text import clean_line
from app.glyphs import choose_glyphs
from app.models import rows
from app.models.listing import ModelEntry
from app.models.scan import Found, Scan
from app.performance.lines import spread

if TYPE_CHECKING:
    from app.app import JalopyApp
    from app.downloads.job import PullJob

LOOK_PERIOD_S = 0.25
_MOST_FILTER_CHARS = 200
_LIKE_A_REPOSITORY = re.compile(r"[^/ ]+/[^/ ]+")
_DETAIL_LINES = 3
_FRAME_COLUMNS = 4
_NOTHING = "No model was found. Those listed can be downloaded; model_directories in your settings names more places."


class ModelsScreen(Screen[None]):
    """Lists models while it is shown."""

    CSS_PATH = "models.tcss"
    BINDINGS: ClassVar[list[BindingType]] = bindings("models")
    AUTO_FOCUS = "#models-list"

    def __init__(self) -> None:
        super().__init__()
        self._glyphs = choose_glyphs()
        self._filter = ""
        self._scan: Scan | None = None
        self._found = Found()
        self._shown: tuple[ModelEntry, ...] = ()
        self._columns = 0
        self._timer: Timer | None = None
        self._measurement: Future[Any] | None = None
        self._trouble = ""

    def compose(self) -> ComposeResult:
        """Lay out title, list, details and keys."""
        yield Static(id="models-title", markup=False)
        yield Static(id="models-heading", markup=False)
        yield OptionList(id="models-list", markup=False)
        yield Static(id="models-detail", markup=False)
        yield Static(id="models-foot", markup=False)
        yield Static(id="models-keys", markup=False)

    def on_mount(self) -> None:
        """Make the timer that looks at what was found."""
        self._timer = self.set_interval(LOOK_PERIOD_S, self._look, pause=True)

    def on_screen_resume(self) -> None:
        """Look again: files come and go, and the last reply may have been the first with its model."""
        self.action_rescan()

    def on_screen_suspend(self) -> None:
        """Look at nothing while something else is shown."""
        if self._timer is not None:
            self._timer.pause()
        if self._scan is not None:
            self._scan.cancel()

    def on_resize(self) -> None:
        """Write the rows anew."""
        self.call_after_refresh(self._show)

    @property
    def _jalopy(self) -> JalopyApp:
        return cast("JalopyApp", self.app)

    # ---- finding

    def action_rescan(self) -> None:
        """Look again for models."""
        if self._scan is not None:
            self._scan.cancel()
        self._scan = Scan(self._jalopy.settings).start()
        if self._timer is not None:
            self._timer.resume()
        self._show()

    def action_measure(self) -> None:
        """Measure what this machine's memory and kernels do, once the engine is free."""
        if self._measurement is None:
            self._measurement = Future()
            self._trouble = ""
            if not self._jalopy.bridge.send(Examine(self._measurement)):
                self._measurement, self._trouble = None, "the engine has too much to do: not measured"
            elif self._timer is not None:
                self._timer.resume()
            self._show()

    def _look(self) -> None:
        if self._measurement is not None and self._measurement.done():
            error = self._measurement.exception()
            self._measurement = None
            if error is not None:
                self._trouble = clean_line(f"not measured: {type(error).__name__}: {error}", 120)
            self.action_rescan()
        found = self._scan.found if self._scan is not None else self._found
        # Rows stay while they are looked for again.
        if found.is_done or found.n_read >= self._found.n_read:
            self._found = found
        self._show()
        is_waiting = self._measurement is not None or self._jalopy.downloads.is_running
        if found.is_done and not is_waiting and self._timer is not None:
            self._timer.pause()

    # ---- what is shown

    def _show(self) -> None:
        if not self.is_mounted or not self.size.width:
            return
        columns = max(20, self.size.width - _FRAME_COLUMNS)
        self._show_rows(columns)
        self._write("models-title", self._title())
        self._write("models-heading", f" {rows.heading(columns)}")
        self._show_detail()
        self._write("models-foot", self._foot())
        self._write("models-keys", self._keys())

    def _show_rows(self, columns: int) -> None:
        wanted = tuple(entry for entry in self._found.entries if entry.matches(self._filter))
        if (wanted, columns) == (self._shown, self._columns):
            return
        before = self._highlighted()
        self._shown, self._columns = wanted, columns
        listed = self.query_one(OptionList)
        listed.clear_options()
        listed.add_options([Option(Content(self._row(entry, columns))) for entry in wanted])
        if wanted:
            places = [n for n, entry in enumerate(wanted) if before is not None and _same(entry, before)]
            listed.highlighted = places[0] if places else 0

    def _row(self, entry: ModelEntry, columns: int) -> str:
        loaded = self._jalopy.chat.turns.model
        is_loaded = loaded is not None and entry.is_here and loaded.path == str(entry.path)
        mark = self._glyphs.here if is_loaded else " " if entry.is_here else "+"
        return f"{mark} {rows.row(entry, columns)}"

    def _show_detail(self) -> None:
        entry = self._highlighted()
        lines = rows.details(entry) if entry is not None else []
        self._write("models-detail", "\n".join(lines[:_DETAIL_LINES]))

    def _title(self) -> str:
        found = self._found
        typed = f"filter: {self._filter}_" if self._filter else "type to filter"
        speed = f" · reads {found.read_gbps:.1f} GB/s" if found.read_gbps else ""
        memory = f"{figures.size(found.available_bytes)} free{speed}" if found.available_bytes else ""
        return "   ".join(part for part in ("Models", typed, memory) if part)

    def _foot(self) -> str:
        found = self._found
        if self._measurement is not None:
            waiting = "waiting for the engine" if self._jalopy.bridge.status.is_busy else "measuring this machine"
            return f"{waiting} ..."
        if self._trouble or found.trouble:
            return self._trouble or found.trouble
        if running := self._jalopy.downloads.line():
            return running
        if not found.is_done:
            read = f"reading headers: {found.n_read} of {found.n_files}"
            return read if found.n_files else "looking for models ..."
        if _LIKE_A_REPOSITORY.search(self._filter):
            return f"{self._jalopy.keymap.first_key('models.download')} downloads {self._filter}"
        if found.entries and not self._shown:
            return f"no model has all these words in its row: {self._filter}"
        if not any(entry.is_here for entry in found.entries):
            return f"{_NOTHING} Looked in: {', '.join(found.looked_in)}"
        if not found.read_gbps:
            key = self._jalopy.keymap.first_key("models.measure")
            return f"speeds are unknown until this machine is measured: {key}"
        return f"{rows.ESTIMATE} estimate. Suits this machine now: {found.advice}" if found.advice else rows.LEGEND

    def _keys(self) -> str:
        key = self._jalopy.keymap.first_key
        entry = self._highlighted()
        if entry is None or entry.is_here:
            names = {"open": "opens", "inspect": "inspects", "download": "downloads", "measure": "measures"}
        else:
            names = {"open": "downloads", "measure": "measures"}
        if self._jalopy.downloads.is_running:
            names |= {"download": "shows the download", "stop_download": "stops it"}
        names["leave"] = "back"
        parts = [f"{key(f'models.{name}')} {word}" for name, word in names.items() if key(f"models.{name}")]
        return "\n".join(spread(parts, max(1, self.size.width - 2), " · "))

    def _write(self, widget_id: str, text: str) -> None:
        widget = self.query_one(f"#{widget_id}", Static)
        if getattr(widget, "jalopy_text", None) != text:
            widget.jalopy_text = text  # type: ignore[attr-defined]
            widget.update(Content(text))

    def _highlighted(self) -> ModelEntry | None:
        at = self.query_one(OptionList).highlighted
        return self._shown[at] if at is not None and at < len(self._shown) else None

    # ---- keys

    def on_key(self, event: events.Key) -> None:
        """Narrow the list by what is typed."""
        if event.key == "backspace":
            self._filter = self._filter[:-1]
        elif event.is_printable and event.character and len(self._filter) < _MOST_FILTER_CHARS:
            self._filter += event.character
        else:
            return
        self._trouble = ""
        event.stop()
        event.prevent_default()
        self._show()

    @on(OptionList.OptionHighlighted)
    def show_highlighted(self) -> None:
        """Say more about the row under the cursor."""
        self._show_detail()
        self._write("models-keys", self._keys())

    @on(OptionList.OptionSelected)
    def open_selected(self) -> None:
        """Enter and a click open."""
        self.action_open()

    def action_open(self) -> None:
        """Open the model under the cursor in place of the present one."""
        entry = self._highlighted()
        if entry is None:
            return
        if entry.is_here and entry.reason:
            self._trouble = f"cannot be opened: {entry.reason}"
            self._show()
        elif entry.is_here:
            self._filter = ""
            self._jalopy.open_model(entry.path, entry.title, entry.outlook)
        else:
            self._download(entry.repository)

    def action_download(self) -> None:
        """Download the repository or address that is typed, else the known model under the cursor."""
        entry = self._highlighted()
        running = self._jalopy.downloads
        if running.is_running and running.job is not None:
            self._show_download(running.job)
        elif _LIKE_A_REPOSITORY.search(self._filter):
            self._download(self._filter)
        elif entry is not None and not entry.is_here:
            self._download(entry.repository)
        else:
            self._trouble = "type OWNER/REPO or an address to download, or go to a row with +"
            self._show()

    def _download(self, what: str) -> None:
        from app.downloads.job import PullJob

        if self._jalopy.downloads.is_running:
            key = self._jalopy.keymap.first_key("models.download")
            self._trouble = f"one download at a time: {key} shows the one that runs"
            self._show()
            return
        self._filter, self._trouble = "", ""
        self._show()
        job = PullJob(what, self._jalopy.settings)
        self._jalopy.look_after_download(job)
        self._show_download(job.start())

    def _show_download(self, job: PullJob) -> None:
        from app.screens.download import DownloadScreen

        self.app.push_screen(DownloadScreen(job), self._leave_download)

    def _leave_download(self, path: str | None) -> None:
        if path is not None:
            self._jalopy.open_model(Path(path), clean_line(Path(path).name))
        elif self._timer is not None:
            self._timer.resume()

    def action_stop_download(self) -> None:
        """Stop the running download; what came is kept."""
        running = self._jalopy.downloads
        if running.is_running:
            running.stop()
            self._trouble = f"stopped: {running.title}; what came is kept, and the same again goes on from there"
            self._show()

    def action_inspect(self) -> None:
        """Show what the file under the cursor holds."""
        entry = self._highlighted()
        if entry is not None and entry.is_here:
            from app.screens.inspect import InspectScreen

            self.app.push_screen(InspectScreen(entry.path, entry.title, self._jalopy.keymap))

    def action_leave(self) -> None:
        """Clear the filter, or go back to the chat."""
        if self._filter:
            self._filter = ""
            self._show()
        else:
            self.app.switch_mode(self.app.DEFAULT_MODE)


def _same(one: ModelEntry, other: ModelEntry) -> bool:
    return (one.path, one.repository) == (other.path, other.repository)
