"""Base of screens that show a list: rows filtered by typing, details of the highlighted row, keys.

A subclass says where its rows come from and how to write them. A thread searches for rows; ``poll``
takes what it has found so far. ``poll`` is called only while the list is shown, and only until it
returns False.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import groupby
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.screen import Screen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.text.glyphs import choose_glyphs
from app.tui.actions import CHAT
from app.tui.drawing.lines import EMPTY, Line, line, muted
from app.tui.drawing.panels import FRAME_COLUMNS, FRAME_ROWS, panel
from app.tui.keymap import Keymap
from app.tui.textual_hacks import Options
from app.tui.widgets.figure_lines import FigureLines, KeyLine, ScreenTitle, content_of

POLL_PERIOD_S = 0.25
_MAX_TYPED_CHARS = 200
_FRAME_COLUMNS = 6
_WIDE_COLUMNS = 120
_ROWS_BESIDE_DETAILS = 3
"""Rows of the screen that are not next to the details: title, foot and keys."""
_LEAST_COLUMNS = 20
_LEAST_ROWS = 16
"""Height of the screen below which frame and details are left out."""

Item = TypeVar("Item")


class ListScreen(Screen[None], Generic[Item]):
    """Screen with a list of items.

    A subclass defines ``TITLE``, ``SCOPE``, ``BINDINGS`` and its actions, which include
    ``action_open``.
    """

    CSS_PATH = Path(__file__).with_name("list_screen.tcss")  # subclasses may be elsewhere
    AUTO_FOCUS = "#list-rows"
    TITLE: ClassVar[str | None]
    SCOPE: ClassVar[str]
    """Scope of the list's actions."""
    MAX_NEW_CHARS: ClassVar[int | None] = None
    """Limit on an edited text; None if there is none."""
    MOST_DETAIL_COLUMNS: ClassVar[int] = 46
    """Limit on the columns of the details next to the rows."""

    filter_text = ""
    """Filter, as typed."""
    message = ""
    """Result of the last key, shown in the foot until the next key is typed."""
    edited_item: Item | None = None
    """Item for which ``new_text`` is being typed; None while the filter is typed."""
    new_text = ""
    """New text of the edited item, as typed."""
    pending_delete: Item | None = None
    """Item to delete if the next key is y; None if nothing is to be deleted."""

    def __init__(self, keymap: Keymap) -> None:
        super().__init__()
        self._keymap = keymap
        self._glyphs = choose_glyphs()
        self._items: tuple[Item | None, ...] = ()
        """Item of each row; None for the heading of a group."""
        self._lines: tuple[Line, ...] = ()
        self._placed_item: Item | None = None
        """Item on which the program has put the cursor; None before the first rows appear."""
        self._has_moved = False
        """Whether the user has moved the cursor since the list appeared."""

    # ---- for subclasses to define

    def start_search(self) -> None:
        """Start a search for rows; called whenever the list appears."""

    def stop_search(self) -> None:
        """Stop the search; called when another screen appears."""

    def poll(self) -> bool:
        """Take the results so far; return whether more are to come."""
        return False

    @abstractmethod
    def items(self) -> tuple[Item, ...]:
        """Return the items that match the filter."""

    def is_same(self, item: Item, other_item: Item) -> bool:
        """Whether the cursor may stay on an item that has replaced the other one."""
        return item == other_item

    def is_start(self, item: Item) -> bool:
        """Whether the cursor begins on this item, rather than on the first."""
        return False

    def group_of(self, item: Item) -> str:
        """Return the heading of the item's group; empty if it is in no group."""
        return ""

    @abstractmethod
    def heading_line(self, columns: int) -> str:
        """Return the line above the rows."""

    @abstractmethod
    def row_line(self, item: Item, columns: int) -> Line:
        """Return the row of an item in ``columns`` columns."""

    @abstractmethod
    def details(self, item: Item, columns: int) -> tuple[str, list[Line]]:
        """Return the title and the lines of an item's details."""

    def context_line(self) -> str:
        """Return the typed filter, or a hint to type one."""
        if self.filter_text:
            return f"filter: {self.filter_text}_"
        return "type to filter"

    @abstractmethod
    def state_line(self) -> str:
        """Return a summary of the list, for the end of the title line."""

    def empty_text(self) -> str:
        """Return how to fill an empty list, for its middle; empty if there is nothing to say."""
        return ""

    @abstractmethod
    def foot_line(self) -> str:
        """Return the line below the rows; empty if there is nothing to say."""

    @property
    def has_important_foot(self) -> bool:
        """Whether the foot answers a key or asks a question. It is then shown on very low screens,
        too."""
        return bool(self.message) or self.pending_delete is not None

    @abstractmethod
    def key_words(self, item: Item | None) -> dict[str, str]:
        """Return the present effects of keys, by the names of their actions."""

    def delete(self, item: Item) -> None:
        """Delete an item after the user has confirmed it."""

    # ---- common to all lists

    def apply_filter(self, text: str) -> None:
        """Filter the list by this text."""
        self.filter_text = text
        self.show()

    def answer_question(self, event: events.Key) -> bool:
        """Take a key as the answer to a pending question.

        Return False if no question is pending; the key then belongs to the filter.
        """
        item = self.pending_delete
        self.pending_delete = None
        if item is not None:
            if event.character in ("y", "Y"):
                self.delete(item)
            self.show()
        return item is not None

    def action_delete(self) -> None:
        """Ask whether to delete the highlighted item."""
        self.pending_delete = self.highlighted()
        self.edited_item = None
        self.say("")

    def compose(self) -> ComposeResult:
        """Lay out title, rows, details and keys."""
        yield ScreenTitle(self.TITLE or "", id="list-title")
        with Container(id="list-body"):
            with Vertical(id="list-left"):
                yield Static(id="list-heading", markup=False)
                yield Options(id="list-rows", markup=False)
                yield Static(id="list-empty", markup=False)
            yield FigureLines("list-detail")
        yield Static(id="list-foot", markup=False)
        yield KeyLine(id="list-keys")

    def on_mount(self) -> None:
        """Create the timer that calls ``poll``."""
        self._timer = self.set_interval(POLL_PERIOD_S, self._poll_rows, pause=True)

    def on_screen_resume(self) -> None:
        """Search again, since the rows may have changed."""
        self.restart_search()

    def on_screen_suspend(self) -> None:
        """Stop polling. Questions and edits stay only below a dialog such as help or palette."""
        self._timer.pause()
        self.stop_search()
        if self.app.current_mode != self.SCOPE:
            self.edited_item = None
            self.pending_delete = None
            self.message = ""
            self._has_moved = False
            self._placed_item = None
            self._lines = ()

    def on_resize(self) -> None:
        """Redraw in the new size."""
        self.set_class(self.size.height < _LEAST_ROWS, "-short")
        self.call_after_refresh(self.show)

    def restart_search(self) -> None:
        """Search for rows again."""
        self.start_search()
        self._timer.resume()
        self.show()

    def say(self, text: str) -> None:
        """Show the result of a key in the foot."""
        self.message = text
        self.show()

    def _poll_rows(self) -> None:
        if not self.poll():
            self._timer.pause()
        self.show()

    def show(self) -> None:
        """Update whatever has changed on the screen."""
        if not self.is_mounted or not self.size.width:
            return
        columns = max(_LEAST_COLUMNS, self.size.width - self.side_columns - _FRAME_COLUMNS)
        self._show_rows(columns)
        state = self.state_line()
        self.query_one(ScreenTitle).set_content(
            self.context_line(), (muted(state),) if state else EMPTY
        )
        empty_text = "" if self._items else self.empty_text()
        self.set_class(bool(empty_text), "-empty")
        self._write("list-empty", empty_text)
        self._write("list-heading", "" if empty_text else self.heading_line(columns))
        self._write("list-foot", self.foot_line())
        self.query_one("#list-foot").set_class(self.has_important_foot, "-answer")
        self.show_highlighted()

    @property
    def side_columns(self) -> int:
        """Columns of the details next to the rows, where they have the height of the screen; 0 if
        they are below the rows."""
        if self.size.width < _WIDE_COLUMNS:
            return 0
        return min(self.MOST_DETAIL_COLUMNS, self.size.width // 2)

    @property
    def detail_rows(self) -> int:
        """Number of lines that the details have room for."""
        if self.side_columns:
            return self.size.height - _ROWS_BESIDE_DETAILS - FRAME_ROWS
        return self.size.height // 3 - FRAME_ROWS

    def highlighted(self) -> Item | None:
        """Return the item under the cursor; None if there is none."""
        index = self.query_one(OptionList).highlighted
        if index is not None and index < len(self._items):
            return self._items[index]
        return None

    def _show_rows(self, columns: int) -> None:
        drawn: list[tuple[Item | None, Line]] = []
        for group, items in groupby(self.items(), self.group_of):
            if group:
                drawn.append((None, line(muted(f" {group}"))))
            drawn += [(item, self.row_line(item, columns)) for item in items]

        previous_item = self.highlighted()
        if previous_item is not None and self._placed_item is not None:
            self._has_moved |= not self.is_same(previous_item, self._placed_item)
        previous_lines = self._lines
        self._items = tuple(item for item, _ in drawn)
        self._lines = tuple(row for _, row in drawn)
        if self._lines == previous_lines:
            return

        rows = self.query_one(OptionList)
        is_ansi = self.app.current_theme.ansi
        rows.clear_options()
        rows.add_options(
            [Option(content_of(row, is_ansi), disabled=item is None) for item, row in drawn]
        )
        rows.highlighted = self._row_of(previous_item)
        self._placed_item = self.highlighted()

    def _row_of(self, previous_item: Item | None) -> int | None:
        """Return the row for the cursor; None if there are no items.

        Until the user moves it, that is the start of the list, as soon as it has been found. Then
        it is the item that had the cursor. If there is no such item, it is the first one.
        """
        if not self._has_moved:
            for row, item in enumerate(self._items):
                if item is not None and self.is_start(item):
                    return row

        first: int | None = None
        for row, item in enumerate(self._items):
            if item is None:
                continue
            if previous_item is not None and self.is_same(item, previous_item):
                return row
            if first is None:
                first = row
        return first

    @on(OptionList.OptionHighlighted)
    def show_highlighted(self) -> None:
        """Show the details of the highlighted item and what keys do with it."""
        rows = self.query_one(OptionList)
        item = self.highlighted()
        key = self._keymap.first_key
        # With the cursor on the first item, the heading above it is visible, too.
        if rows.highlighted == 1 and self._items and self._items[0] is None:
            rows.scroll_home(animate=False)
        self._show_details(item)
        words = self.key_words(item)
        self.query_one(KeyLine).set_content(
            (key(f"{self.SCOPE}.{name}"), text) for name, text in words.items()
        )

    def _show_details(self, item: Item | None) -> None:
        """Draw the panel of details next to the rows, or below them in a third of the height."""
        widget = self.query_one("#list-detail", FigureLines)
        width = self.side_columns or self.size.width
        widget.styles.width = width
        drawn: list[Line] = []
        if item is not None and self.size.height >= _LEAST_ROWS:
            name, body = self.details(item, max(1, width - FRAME_COLUMNS))
            drawn = panel(name, body[: self.detail_rows], width, self._glyphs)
        widget.display = bool(drawn)
        widget.fill(drawn)

    def _write(self, widget_id: str, text: str) -> None:
        widget = self.query_one(f"#{widget_id}", Static)
        if widget.content != text:
            widget.update(text)

    @property
    def _editable_text(self) -> str:
        """Text to which typed letters are appended: the filter or an item's new text."""
        if self.edited_item is None:
            return self.filter_text
        return self.new_text

    def on_key(self, event: events.Key) -> None:
        """Edit the filter, or the new text of an item."""
        text = self._editable_text
        if not self.answer_question(event):
            if event.key == "backspace":
                self._type(text[:-1])
            elif event.key == "ctrl+u":
                self._type("")
            elif event.is_printable and event.character and len(text) < _MAX_TYPED_CHARS:
                self._type(text + event.character)
            else:
                return
        event.stop()
        event.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        """Insert pasted text as if it were typed, such as an address to download."""
        event.stop()
        pasted = " ".join(event.text[: 2 * _MAX_TYPED_CHARS].split())
        if pasted:
            self._type((self._editable_text + pasted)[:_MAX_TYPED_CHARS])

    def _type(self, text: str) -> None:
        self.message = ""
        self.pending_delete = None
        if self.edited_item is None:
            self.apply_filter(text)
        else:
            self.new_text = text[: self.MAX_NEW_CHARS]
            self.show()

    @on(OptionList.OptionSelected)
    async def open_selected(self) -> None:
        """Open an item on Enter or a click.

        A second Enter is ignored once a dialog has opened.
        """
        if self.is_active:
            await self.run_action("open")

    def action_leave(self) -> None:
        """Cancel an edit or a question, else clear the filter, else go back to the chat."""
        if self.edited_item is not None or self.pending_delete is not None:
            self.edited_item = None
            self.pending_delete = None
            self.say("")
        elif self.filter_text:
            self._type("")
        else:
            self.app.switch_mode(CHAT)
