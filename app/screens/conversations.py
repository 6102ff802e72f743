"""The saved conversations: found by what is typed, opened, renamed, deleted, saved as files.

Typing narrows the list, and searches in what was said. Reading happens in a thread (``app.conversations.look``); the
screen looks at its record while it runs, and at nothing once it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from textual import events, on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app import export, figures
from app.actions import bindings
from app.clean_text import clean_line
from app.conversations import rows
from app.conversations.keeper import cause_of
from app.conversations.log_file import LogRefusedError
from app.conversations.look import Found, Hit, Look, Texts
from app.conversations.replay import MOST_TITLE_CHARS
from app.conversations.store import Store
from app.glyphs import choose_glyphs
from app.performance.lines import spread

if TYPE_CHECKING:
    from app.app import JalopyApp

LOOK_PERIOD_S = 0.2
_MOST_FILTER_CHARS = 200
_FRAME_COLUMNS = 4


class _Typing(Enum):
    """What typed letters are for."""

    FILTER = "filter"
    TITLE = "title"
    ANSWER = "answer"
    """Whether to delete."""


class ConversationsScreen(Screen[None]):
    """Lists conversations while it is shown."""

    CSS_PATH = "models.tcss"
    BINDINGS: ClassVar[list[BindingType]] = bindings("conversations")
    AUTO_FOCUS = "#models-list"

    def __init__(self) -> None:
        super().__init__()
        self._glyphs = choose_glyphs()
        self._filter = self._new_title = self._said = ""
        self._typing = _Typing.FILTER
        self._texts = Texts()
        self._look: Look | None = None
        self._found = Found()
        self._shown: tuple[Hit, ...] = ()
        self._columns = 0
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        """Lay out title, list, details and keys, as the list of models does."""
        yield Static(id="models-title", markup=False)
        yield Static(id="models-heading", markup=False)
        yield OptionList(id="models-list", markup=False)
        yield Static(id="models-detail", markup=False)
        yield Static(id="models-foot", markup=False)
        yield Static(id="models-keys", markup=False)

    def on_mount(self) -> None:
        """Make the timer that looks at what was found."""
        self._timer = self.set_interval(LOOK_PERIOD_S, self._take_found, pause=True)

    def on_screen_resume(self) -> None:
        """Look again."""
        self._typing, self._said = _Typing.FILTER, ""
        self._begin_look()

    def on_screen_suspend(self) -> None:
        """Look at nothing while something else is shown, and remember no text."""
        if self._timer is not None:
            self._timer.pause()
        if self._look is not None:
            self._look.cancel()
        self._texts, self._look = Texts(), None

    def on_resize(self) -> None:
        """Write the rows anew."""
        self.call_after_refresh(self._show)

    @property
    def _jalopy(self) -> JalopyApp:
        return cast("JalopyApp", self.app)

    @property
    def _store(self) -> Store:
        store = self._jalopy.chat.conversations.store
        assert store is not None
        return store

    # ---- finding

    def _begin_look(self) -> None:
        self._look = Look(self._store, self._filter, self._texts).start(self._look)
        if self._timer is not None:
            self._timer.resume()
        self._show()

    def _take_found(self) -> None:
        if self._look is None:
            return
        found = self._look.found
        # Rows stay while they are looked for again.
        if found.is_done or found.hits:
            self._found = found
        self._show()
        if found.is_done and self._timer is not None:
            self._timer.pause()

    # ---- what is shown

    def _show(self) -> None:
        if not self.is_mounted or not self.size.width:
            return
        columns = max(20, self.size.width - _FRAME_COLUMNS)
        self._show_rows(columns)
        self._write("models-title", self._title())
        self._write("models-heading", f"   {rows.heading(columns - 2)}")
        self._show_detail()
        self._write("models-foot", self._foot())
        self._write("models-keys", self._keys())

    def _show_rows(self, columns: int) -> None:
        wanted = self._found.hits
        if (wanted, columns) == (self._shown, self._columns):
            return
        before = self._highlighted()
        self._shown, self._columns = wanted, columns
        listed = self.query_one(OptionList)
        listed.clear_options()
        listed.add_options([Option(Content(self._row(hit, columns))) for hit in wanted])
        if wanted:
            places = [n for n, hit in enumerate(wanted) if before is not None and hit.entry.id == before.entry.id]
            listed.highlighted = places[0] if places else 0

    def _row(self, hit: Hit, columns: int) -> str:
        mark = self._glyphs.here if hit.entry.id == self._jalopy.chat.turns.journal.id else " "
        return f"{mark} {rows.row(hit, columns - 2)}"

    def _show_detail(self) -> None:
        hit = self._highlighted()
        self._write("models-detail", rows.details(hit) if hit is not None else "")

    def _title(self) -> str:
        if self._typing is _Typing.TITLE:
            return f"New title: {self._new_title}_"
        typed = f"filter: {self._filter}_" if self._filter else "type to search in titles and texts"
        kept = sum(hit.entry.log_bytes + hit.entry.state_bytes for hit in self._found.hits)
        return "   ".join(["Conversations", typed, f"{len(self._found.hits)}, {figures.size(kept)}"])

    def _foot(self) -> str:
        found, hit = self._found, self._highlighted()
        if self._typing is _Typing.ANSWER and hit is not None:
            return f"Delete {hit.entry.summary.title}? y deletes it for good, any other key keeps it"
        if self._said or found.trouble:
            return self._said or found.trouble
        if self._look is not None and not self._look.found.is_done:
            return f"searching: {found.n_searched} of {found.n_all}" if self._filter else "looking ..."
        if not self._shown:
            return "no conversation has all these words" if self._filter else "No conversation is saved yet."
        return ""

    def _keys(self) -> str:
        key = self._jalopy.keymap.first_key
        names = {
            "open": "opens",
            "rename": "renames",
            "delete": "deletes",
            "export": "Markdown",
            "export_json": "JSON",
            "leave": "back",
        }
        if self._typing is _Typing.TITLE:
            names = {"open": "keeps the title", "leave": "leaves it as it was"}
        shown = {name: key(f"conversations.{name}") for name in names}
        parts = [f"{shown[name]} {word}" for name, word in names.items() if shown[name]]
        return "\n".join(spread(parts, max(1, self.size.width - 2), " · "))

    def _write(self, widget_id: str, text: str) -> None:
        widget = self.query_one(f"#{widget_id}", Static)
        if getattr(widget, "jalopy_text", None) != text:
            widget.jalopy_text = text  # type: ignore[attr-defined]
            widget.update(Content(text))

    def _highlighted(self) -> Hit | None:
        at = self.query_one(OptionList).highlighted
        return self._shown[at] if at is not None and at < len(self._shown) else None

    # ---- keys

    def on_key(self, event: events.Key) -> None:
        """Narrow the list by what is typed, or write the new title, or answer the question."""
        if self._typing is _Typing.ANSWER:
            self._answer(event)
            return
        before = self._new_title if self._typing is _Typing.TITLE else self._filter
        if event.key == "backspace":
            typed = before[:-1]
        elif event.is_printable and event.character and len(before) < _MOST_FILTER_CHARS:
            typed = before + event.character
        else:
            return
        event.stop()
        event.prevent_default()
        self._said = ""
        if self._typing is _Typing.TITLE:
            self._new_title = typed[:MOST_TITLE_CHARS]
            self._show()
        else:
            self._filter = typed
            self._begin_look()

    def _answer(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self._typing = _Typing.FILTER
        hit = self._highlighted()
        if event.character in ("y", "Y") and hit is not None:
            self._delete(hit)
        self._show()

    @on(OptionList.OptionHighlighted)
    def show_highlighted(self) -> None:
        """Say more about the row under the cursor."""
        self._show_detail()

    @on(OptionList.OptionSelected)
    def open_selected(self) -> None:
        """Enter and a click open."""
        self.action_open()

    def action_open(self) -> None:
        """Go on with the conversation under the cursor; keep the new title, where one is being written."""
        hit = self._highlighted()
        if hit is None:
            return
        if self._typing is _Typing.TITLE:
            self._rename(hit)
        elif hit.entry.trouble:
            self._said = f"cannot be opened: {hit.entry.trouble}"
            self._show()
        else:
            self._filter = ""
            self.app.switch_mode(self.app.DEFAULT_MODE)
            self._jalopy.chat.call_later(self._jalopy.chat.open_conversation, hit.entry.id)

    def action_rename(self) -> None:
        """Write another title."""
        hit = self._highlighted()
        if hit is not None:
            self._typing, self._new_title, self._said = _Typing.TITLE, hit.entry.summary.title, ""
            self._show()

    def _rename(self, hit: Hit) -> None:
        self._typing = _Typing.FILTER
        title = clean_line(" ".join(self._new_title.split()), MOST_TITLE_CHARS)
        chat = self._jalopy.chat
        if title and hit.entry.id == chat.turns.journal.id:
            chat.turns.journal.rename(chat.turns.conversation, title)
            chat.turns.journal.settle(1.0)
        elif title:
            self._try(lambda: self._store.rename(hit.entry.id, title), "not renamed")
        self._begin_look()

    def action_delete(self) -> None:
        """Ask whether to delete the conversation under the cursor."""
        hit = self._highlighted()
        if hit is None:
            return
        if hit.entry.id == self._jalopy.chat.turns.journal.id:
            self._said = "this is the conversation in the chat: /new begins another one, then it can be deleted"
        else:
            self._typing, self._said = _Typing.ANSWER, ""
        self._show()

    def _delete(self, hit: Hit) -> None:
        self._try(lambda: self._store.delete(hit.entry.id), "not deleted")
        self._begin_look()

    def action_export(self) -> None:
        """Save the conversation as Markdown in the present directory."""
        self._export("md")

    def action_export_json(self) -> None:
        """Save the conversation as JSON in the present directory."""
        self._export("json")

    def _export(self, kind: str) -> None:
        hit = self._highlighted()
        if hit is None:
            return

        def save() -> None:
            saved = self._store.read(hit.entry.id)
            now = datetime.now().astimezone()
            path = export.choose_path("", now).with_suffix(f".{kind}")
            path = path.with_stem(f"{path.stem}-{int(hit.entry.id)}")
            as_text = export.to_json if kind == "json" else export.to_markdown
            export.write_new(path, as_text(saved.conversation, saved.model, now, True))
            self._said = f"saved: {Path(path).absolute()}"

        self._try(save, "not saved")
        self._show()

    def _try(self, work: Callable[[], None], failed: str) -> None:
        try:
            work()
        except FileExistsError as error:
            self._said = f"{failed}: {clean_line(str(error.filename), 120)} exists already"
        except (LogRefusedError, OSError) as error:
            self._said = f"{failed}: {cause_of(error)}"

    def action_leave(self) -> None:
        """Leave the title as it was; clear the filter; or go back to the chat."""
        if self._typing is not _Typing.FILTER:
            self._typing = _Typing.FILTER
            self._show()
        elif self._filter:
            self._filter = ""
            self._begin_look()
        else:
            self.app.switch_mode(self.app.DEFAULT_MODE)
