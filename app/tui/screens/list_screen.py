"""A list that fills a screen: rows narrowed by typing, details of the row under the cursor, and
keys.

A subclass says where its rows come from and how they read. Looking for them is a thread's work;
``look`` takes what that has found so far, and is called only while the list is shown and says that
more is to come.
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

LOOK_PERIOD_S = 0.25
_MOST_TYPED_CHARS = 200
_FRAME_COLUMNS = 6
_WIDE_COLUMNS = 120
DETAIL_COLUMNS = 46
"""From this width on the details are next to the rows."""
_LEAST_COLUMNS = 20
_SHORT_ROWS = 16
"""Below this height the rows have the room of frame and details."""

Item = TypeVar("Item")


class ListScreen(Screen[None], Generic[Item]):
    """A list: a subclass gives ``TITLE``, ``SCOPE``, ``BINDINGS`` and the actions, ``action_open``
    among them."""

    CSS_PATH = Path(__file__).with_name("list_screen.tcss")  # wherever the subclass is
    AUTO_FOCUS = "#list-rows"
    TITLE: ClassVar[str | None]
    SCOPE: ClassVar[str]
    """The list's part of the action registry, for the names of its keys."""
    MOST_NEW_CHARS: ClassVar[int | None] = None
    """Limit on the text of a row."""

    typed = ""
    """Text that filters the list."""
    said = ""
    """Result of the last key; shown in the foot until something is typed."""
    edited: Item | None = None
    """The row for which ``new_text`` is being typed; None while the filter is typed."""
    new_text = ""
    doomed: Item | None = None
    """The row that is deleted if the next key says yes; the foot asks."""

    def __init__(self, keymap: Keymap) -> None:
        super().__init__()
        self._keymap = keymap
        self._glyphs = choose_glyphs()
        self._items: tuple[Item | None, ...] = ()
        """What is in each row; None in the heading of a group."""
        self._lines: tuple[Line, ...] = ()

    # ---- what a subclass says

    def start_looking(self) -> None:
        """Begin to look for rows: the list is shown now, maybe again."""

    def stop_looking(self) -> None:
        """Look no more: something else is shown."""

    def look(self) -> bool:
        """Take what was found so far; return whether more is to come."""
        return False

    @abstractmethod
    def items(self) -> tuple[Item, ...]:
        """Return what was found, as far as it is wanted."""

    def is_same(self, one: Item, other: Item) -> bool:
        """Whether the cursor belongs on the one after it was on the other."""
        return one == other

    def group_of(self, item: Item) -> str:
        """Name what the item is listed under; "" for nothing."""
        return ""

    @abstractmethod
    def heading_line(self, columns: int) -> str:
        """Write the line above the rows."""

    @abstractmethod
    def row_line(self, item: Item, columns: int) -> Line:
        """Write one row in ``columns`` columns."""

    @abstractmethod
    def details(self, item: Item, columns: int) -> tuple[str, list[Line]]:
        """Name the row under the cursor, and say more about it."""

    def context_line(self) -> str:
        """Write what is typed, or what typing does."""
        if self.typed:
            return f"filter: {self.typed}_"
        return "type to filter"

    @abstractmethod
    def state_line(self) -> str:
        """Write what the list is measured against, for the end of the title."""

    @abstractmethod
    def foot_line(self) -> str:
        """Say what is going on, or what to do; "" for nothing."""

    @property
    def must_be_seen(self) -> bool:
        """Whether the foot answers a key, or asks something: then it is shown on the lowest screens
        as well."""
        return bool(self.said) or self.doomed is not None

    @abstractmethod
    def key_words(self, item: Item | None) -> dict[str, str]:
        """Return what keys do now, by the names of their actions."""

    def delete(self, item: Item) -> None:
        """Delete a row, which the user has agreed to."""

    # ---- what all lists do

    def take_typed(self, text: str) -> None:
        """Narrow the list to what has this text."""
        self.typed = text
        self.show()

    def takes_key(self, event: events.Key) -> bool:
        """Whether a key is the answer to a question and no letter of the filter; it has been acted
        on then."""
        item = self.doomed
        self.doomed = None
        if item is not None:
            if event.character in ("y", "Y"):
                self.delete(item)
            self.show()
        return item is not None

    def action_delete(self) -> None:
        """Ask whether to delete the row under the cursor."""
        self.doomed = self.highlighted()
        self.edited = None
        self.say("")

    def compose(self) -> ComposeResult:
        """Lay out title, rows, details and keys."""
        yield ScreenTitle(self.TITLE or "", id="list-title")
        with Container(id="list-body"):
            with Vertical(id="list-left"):
                yield Static(id="list-heading", markup=False)
                yield Options(id="list-rows", markup=False)
            yield FigureLines("list-detail")
        yield Static(id="list-foot", markup=False)
        yield KeyLine(id="list-keys")

    def on_mount(self) -> None:
        """Make the timer that looks at what was found, until ``look`` says that nothing more
        comes."""
        self._timer = self.set_interval(LOOK_PERIOD_S, self._look_again, pause=True)

    def on_screen_resume(self) -> None:
        """Look again: things come and go."""
        self.begin()

    def on_screen_suspend(self) -> None:
        """Look at nothing while something else is shown; below help or palette what is asked or
        typed stays."""
        self._timer.pause()
        self.stop_looking()
        if self.app.current_mode != self.SCOPE:
            self.edited = None
            self.doomed = None
            self.said = ""

    def on_resize(self) -> None:
        """Write the rows again."""
        self.set_class(self.size.height < _SHORT_ROWS, "-short")
        self.call_after_refresh(self.show)

    def begin(self) -> None:
        """Look again for rows."""
        self.start_looking()
        self._timer.resume()
        self.show()

    def say(self, text: str) -> None:
        """Say what a key led to."""
        self.said = text
        self.show()

    def _look_again(self) -> None:
        if not self.look():
            self._timer.pause()
        self.show()

    def show(self) -> None:
        """Write everything that is not there as it should be."""
        if not self.is_mounted or not self.size.width:
            return
        columns = max(
            _LEAST_COLUMNS, self.size.width - _detail_columns(self.size.width) - _FRAME_COLUMNS
        )
        self._show_rows(columns)
        state = self.state_line()
        self.query_one(ScreenTitle).tell(self.context_line(), (muted(state),) if state else EMPTY)
        self._write("list-heading", self.heading_line(columns))
        self._write("list-foot", self.foot_line())
        self.query_one("#list-foot").set_class(self.must_be_seen, "-answer")
        self.show_highlighted()

    def highlighted(self) -> Item | None:
        """Return what the cursor is on."""
        at = self.query_one(OptionList).highlighted
        if at is not None and at < len(self._items):
            return self._items[at]
        return None

    def _show_rows(self, columns: int) -> None:
        drawn: list[tuple[Item | None, Line]] = []
        for group, items in groupby(self.items(), self.group_of):
            if group:
                drawn += [(None, line(muted(f" {group}")))]
            else:
                drawn += []
            drawn += [(item, self.row_line(item, columns)) for item in items]
        before = self.highlighted()
        had = self._lines
        self._items = tuple(item for item, _ in drawn)
        self._lines = tuple(row for _, row in drawn)
        if self._lines == had:
            return
        rows = self.query_one(OptionList)
        is_ansi = self.app.current_theme.ansi
        rows.clear_options()
        rows.add_options(
            [Option(content_of(row, is_ansi), disabled=item is None) for item, row in drawn]
        )
        places = [(n, item) for n, (item, _) in enumerate(drawn) if item is not None]
        if places:
            same = [n for n, item in places if before is not None and self.is_same(item, before)]
            if same:
                rows.highlighted = same[0]
            else:
                rows.highlighted = places[0][0]

    @on(OptionList.OptionHighlighted)
    def show_highlighted(self) -> None:
        """Say more about the row under the cursor, and what keys do with it."""
        rows = self.query_one(OptionList)
        item = self.highlighted()
        key = self._keymap.first_key
        # a cursor at the top shows the first heading as well
        if rows.highlighted == 1 and self._items[0] is None:
            rows.scroll_home(animate=False)
        self._show_details(item)
        words = self.key_words(item)
        self.query_one(KeyLine).tell(
            (key(f"{self.SCOPE}.{name}"), text) for name, text in words.items()
        )

    def _show_details(self, item: Item | None) -> None:
        """Draw the panel of details, as high as they are, as far as the rows leave room for it."""
        widget = self.query_one("#list-detail", FigureLines)
        columns = _detail_columns(self.size.width)
        width = columns or self.size.width
        if columns:
            most = self.size.height
        else:
            most = self.size.height // 3
        drawn: list[Line] = []
        if item is not None and self.size.height >= _SHORT_ROWS:
            name, body = self.details(item, max(1, width - FRAME_COLUMNS))
            drawn = panel(name, body[: most - FRAME_ROWS], width, self._glyphs)
        widget.display = bool(drawn)
        widget.fill(drawn)

    def _write(self, widget_id: str, text: str) -> None:
        widget = self.query_one(f"#{widget_id}", Static)
        if widget.content != text:
            widget.update(text)

    @property
    def _typed_before(self) -> str:
        """What a typed letter is appended to."""
        if self.edited is None:
            return self.typed
        return self.new_text

    def on_key(self, event: events.Key) -> None:
        """Narrow the list by what is typed, or write the text of a row."""
        before = self._typed_before
        if not self.takes_key(event):
            if event.key == "backspace":
                self._type(before[:-1])
            elif event.key == "ctrl+u":
                self._type("")
            elif event.is_printable and event.character and len(before) < _MOST_TYPED_CHARS:
                self._type(before + event.character)
            else:
                return
        event.stop()
        event.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        """Take what is pasted as if it were typed: an address to download, words to search for."""
        event.stop()
        pasted = " ".join(event.text[: 2 * _MOST_TYPED_CHARS].split())
        if pasted:
            self._type((self._typed_before + pasted)[:_MOST_TYPED_CHARS])

    def _type(self, text: str) -> None:
        self.said = ""
        self.doomed = None
        if self.edited is None:
            self.take_typed(text)
        else:
            self.new_text = text[: self.MOST_NEW_CHARS]
            self.show()

    @on(OptionList.OptionSelected)
    async def open_selected(self) -> None:
        """Enter and a click open; a second Enter is not meant for what is below a dialog by
        then."""
        if self.is_active:
            await self.run_action("open")

    def action_leave(self) -> None:
        """Leave a row, or its text, as it was; clear the filter; or go back to the chat."""
        if self.edited is not None or self.doomed is not None:
            self.edited = self.doomed = None
            self.say("")
        elif self.typed:
            self._type("")
        else:
            self.app.switch_mode(CHAT)


def _detail_columns(width: int) -> int:
    """Return the columns of the details where they are next to the rows; 0 where they are below
    them."""
    if width >= _WIDE_COLUMNS:
        return DETAIL_COLUMNS
    return 0
