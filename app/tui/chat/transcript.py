"""The transcript: the messages of the conversation, and lines of the program between them.

Every layout of the screen visits every widget. So old messages have no widgets until the user
scrolls up to them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widget import AwaitMount
from textual.widgets import Static

from app.conversations.conversation import ChatMessage
from app.tui.textual_hacks import draw_bar_that_moved
from app.tui.widgets.message_view import (
    MessageView,
    Note,
    ReplyView,
    ToolView,
    UserView,
    saved_view,
)

MAX_MOUNTED = 40
"""Limit on mounted messages and notes. Above it the oldest are unmounted, down to
``MOUNTED_AFTER_TRIM``."""
MOUNTED_AFTER_TRIM = 24
EARLIER_AT_ONCE = 20
"""Number of earlier messages that are mounted at a time."""
AROUND_DISTANT = 2
"""Number of messages that are mounted on either side of a distant one."""

_DROPPED = "-dropped"
_DIVIDER = "-divider"

Entry = MessageView | Note
AnyEntry = TypeVar("AnyEntry", bound=Entry)


class Transcript(VerticalScroll, can_focus=False):
    """Scrolling view of messages, which follows new text unless the user has scrolled up."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        # At least as high as the view: Textual moves anchored content that is lower to the bottom.
        self._messages = Vertical(id="messages")
        self.waiting: deque[UserView] = deque()
        """Messages that wait for their turn. They stay at the end."""
        self._seen: list[tuple[Entry, int]] = []
        """The last entries, and their heights when the end was last in sight."""
        self._earlier: list[Entry | ChatMessage] = []
        """Entries without mounted widgets, oldest first; saved messages have no widget yet."""
        self._earlier_line = Static(markup=False, classes="note", id="earlier")
        self._earlier_line.display = False
        self._between: list[Entry | ChatMessage] = []
        """Entries without widgets between a distant message that is shown and the last ones."""
        self._between_line: Static | None = None
        """Line in place of these entries; None if there are none."""

    def compose(self) -> ComposeResult:
        """Yield the container of the messages."""
        with self._messages:
            yield self._earlier_line

    def on_mount(self) -> None:
        """Follow new text."""
        self.anchor()
        draw_bar_that_moved(self)

    # ---- adding and removing

    def add_user(self, text: str, folded: str = "") -> UserView:
        """Add a message of the user at the end, and scroll to it.

        Args:
            folded: the text with its large pastes folded; "" if there are none.
        """
        view = UserView(text, folded)
        self._messages.mount(view)
        self.anchor()
        return view

    def add(self, entry: AnyEntry) -> AnyEntry:
        """Add a reply, tool results or a note above the messages that wait."""
        self._mount(entry)
        return entry

    def settled_entries(self) -> list[Entry]:
        """Return the mounted entries without the messages that wait, oldest first."""
        return [entry for entry in self._entries() if entry not in self.waiting]

    def add_after(self, entries: Sequence[Entry], note: Note) -> None:
        """Add a note above all messages that are not among the given entries."""
        later = next((view for view in self.messages() if view not in entries), None)
        self._follow_from_end()
        self._messages.mount(note, before=later)

    async def add_and_wait(self, entry: Entry) -> None:
        """Add an entry like ``add``, and wait until it can have the focus."""
        await self._mount(entry)

    def _mount(self, entry: Entry) -> AwaitMount:
        if isinstance(entry, Note):
            self._follow_from_end()
        return self._messages.mount(entry, before=self.waiting[0] if self.waiting else None)

    def replace(self, old: MessageView | None, new: MessageView) -> None:
        """Show a message in place of another."""
        if old is None:
            self.add(new)
        else:
            self._messages.mount(new, after=old)
            self.drop([old])

    async def replace_from(self, view: MessageView, messages: Sequence[ChatMessage]) -> None:
        """Show saved messages in place of a mounted message and all below it but those that wait."""
        if view in self._above_gap():
            self._mount_between(len(self._between))
        entries = self._entries()
        later = [entry for entry in entries[entries.index(view) :] if entry not in self.waiting]
        views = [saved_view(message) for message in messages]
        mounted = self._messages.mount_all(views, after=later[-1])
        self.drop(later)
        await mounted

    async def fill(self, messages: Sequence[ChatMessage]) -> None:
        """Show a saved conversation in an empty transcript; mount only its end."""
        self._earlier += messages[:-MOUNTED_AFTER_TRIM]
        views = [saved_view(message) for message in messages[-MOUNTED_AFTER_TRIM:]]
        self._show_earlier_line()
        mounted = self._messages.mount_all(views)
        self.fold_calls()
        self.anchor()
        await mounted

    def divide(self, message: ChatMessage, text: str) -> None:
        """Show a dividing line above a message; an older one is removed."""
        line = Note(text)
        line.add_class(_DIVIDER)
        self.remove_divider()
        self._close_gap()
        index = self._earlier_index(message)
        view = self._mounted_view(message)
        if index is not None:
            self._earlier.insert(index, line)
        elif view is not None:
            self._messages.mount(line, before=view)

    def remove_divider(self) -> None:
        """Remove the dividing line."""
        self.drop([entry for entry in self._entries() if entry.has_class(_DIVIDER)])
        self._earlier = [entry for entry in self._earlier if not _is_divider(entry)]

    def drop(self, entries: Sequence[Entry]) -> None:
        """Remove messages or notes."""
        for entry in entries:
            entry.add_class(_DROPPED)  # Textual keeps it among the children for a moment
        self._messages.remove_children(entries)

    async def clear(self) -> None:
        """Remove everything but the messages that wait."""
        self._earlier.clear()
        self._between.clear()
        if self._between_line is not None:
            self._between_line.remove()
            self._between_line = None
        self._show_earlier_line()
        await self._messages.remove_children(
            [entry for entry in self._entries() if entry not in self.waiting]
        )
        self.anchor()

    # ---- finding

    def messages(self) -> list[MessageView]:
        """Return the mounted messages of the user and the model, oldest first."""
        return [entry for entry in self._entries() if isinstance(entry, MessageView)]

    def messages_from(self, view: MessageView) -> list[MessageView]:
        """Return a mounted message and all after it; empty if it is not mounted."""
        views = self.messages()
        if view not in views:
            return []
        if view in self._above_gap():
            self._mount_between(len(self._between))
            views = self.messages()
        return views[views.index(view) :]

    def notes_after(self, views: Sequence[MessageView]) -> list[Note]:
        """Return the mounted notes below the first of some messages."""
        entries = self._entries()
        first = next((index for index, entry in enumerate(entries) if entry in views), len(entries))
        return [entry for entry in entries[first:] if isinstance(entry, Note)]

    def replies(self) -> list[ReplyView]:
        """Return the mounted replies, oldest first."""
        return [entry for entry in self._entries() if isinstance(entry, ReplyView)]

    def view_of(self, message: ChatMessage) -> MessageView | None:
        """Return the widget of a message, and mount it if it is an earlier one."""
        view = self._mounted_view(message)
        if view is None or view in self._above_gap():
            self._close_gap()
        index = self._earlier_index(message)
        if index is not None:
            self.show_earlier(len(self._earlier) - index)
        return self._mounted_view(message)

    def view_near(self, message: ChatMessage) -> MessageView | None:
        """Return the widget of a message; mount only messages around it if it is far back."""
        view = self._mounted_view(message)
        if view is not None:
            return view
        self._close_gap()
        index = self._earlier_index(message)
        if index is None or len(self._earlier) - index <= EARLIER_AT_ONCE:
            return self.view_of(message)
        first = max(0, index - AROUND_DISTANT)
        last = index + AROUND_DISTANT
        self._between = self._earlier[last + 1 :]
        self._between_line = Static(markup=False, classes="note")
        views = [_view_of_entry(entry) for entry in self._earlier[first : last + 1]]
        del self._earlier[first:]
        self._messages.mount_all([*views, self._between_line], after=self._earlier_line)
        self._show_earlier_line()
        self._show_between_line()
        return self._mounted_view(message)

    # ---- the gap below a distant message

    def _above_gap(self) -> list[Entry]:
        """Return the mounted entries above the gap; empty if there is no gap."""
        if self._between_line is None:
            return []
        children = list(self._messages.children)
        above = children[: children.index(self._between_line)]
        return [entry for entry in self._entries() if entry in above]

    def _close_gap(self) -> None:
        """Unmount the distant messages again."""
        if self._between_line is None:
            return
        self._unmount(self._above_gap())
        self._earlier += self._between
        self._between = []
        self._between_line.remove()
        self._between_line = None
        self._show_earlier_line()

    def _mount_between(self, n_entries: int) -> None:
        """Mount the first entries of the gap."""
        if self._between_line is None:
            return
        views = [_view_of_entry(entry) for entry in self._between[:n_entries]]
        del self._between[:n_entries]
        self._messages.mount_all(views, before=self._between_line)
        self._show_between_line()
        self.fold_calls()
        if not self._between:
            self._between_line.remove()
            self._between_line = None

    def _show_between_line(self) -> None:
        if self._between_line is not None:
            n_messages = _n_messages_in(self._between)
            self._between_line.update(f"{n_messages} messages: Page down shows them")

    def _mounted_view(self, message: ChatMessage) -> MessageView | None:
        return next((view for view in self.messages() if view.message is message), None)

    def _earlier_index(self, message: ChatMessage) -> int | None:
        for index, entry in enumerate(self._earlier):
            if entry is message or getattr(entry, "message", None) is message:
                return index
        return None

    def _entries(self) -> list[Entry]:
        entries = (
            child for child in self._messages.children if isinstance(child, (MessageView, Note))
        )
        return [entry for entry in entries if not entry.has_class(_DROPPED)]

    # ---- changing messages

    def toggle_folds(self) -> None:
        """Unfold all large pastes, or fold them if none is folded."""
        views = [view for view in self.query(UserView) if view.folded]
        is_any_folded = any(not view.is_unfolded for view in views)
        for view in views:
            view.unfold(is_any_folded)

    def fold_calls(self) -> None:
        """Hide replies that are only calls of tools: the lines of the tools show them."""
        views = self.messages()
        for view, following in pairwise(views):
            if isinstance(view, ReplyView) and isinstance(following, ToolView):
                view.display = following.is_stopped or not view.has_only_calls

    def end_offers(self) -> None:
        """Remove the offers of the greeting and below the last replies."""
        for entry in self._entries():
            if isinstance(entry, Note):
                entry.end_offer()
        for view in self.replies()[-2:]:
            view.offer("")

    # ---- earlier messages

    def trim(self) -> None:
        """Unmount old messages, unless the user has scrolled up to them."""
        if not self.is_scrolled_up:
            self._close_gap()
        entries = self._entries()
        # An edit may have removed the later ones.
        if len(entries) < MOUNTED_AFTER_TRIM and self._mount_earlier(EARLIER_AT_ONCE):
            self.anchor()
        if len(entries) <= MAX_MOUNTED or self.is_scrolled_up:
            return
        self._unmount(entries[:-MOUNTED_AFTER_TRIM])

    def fold_before(self, message: ChatMessage) -> None:
        """Unmount everything above a message and the dividing line above it."""
        self._close_gap()
        view = self._mounted_view(message)
        if view is None:
            return
        entries = self._entries()
        old = entries[: entries.index(view)]
        if old and _is_divider(old[-1]):
            old.pop()
        self._unmount(old)

    def _unmount(self, entries: Sequence[Entry]) -> None:
        """Move the first entries to the earlier ones."""
        self._earlier += [entry.copy() for entry in entries]
        self.drop(entries)
        self._show_earlier_line()

    def show_earlier(self, n_entries: int = EARLIER_AT_ONCE) -> bool:
        """Mount the newest of the earlier messages; False if there are none."""
        first = next(iter(self._entries()), None)
        if not self._mount_earlier(n_entries):
            return False
        self.release_anchor()
        if first is not None:
            self.call_after_refresh(self._scroll_to_top_of, first)
        return True

    def _mount_earlier(self, n_entries: int) -> bool:
        entries = [_view_of_entry(entry) for entry in self._earlier[-n_entries:]]
        del self._earlier[-n_entries:]
        self._messages.mount_all(entries, after=self._earlier_line)
        self.fold_calls()
        self._show_earlier_line()
        return bool(entries)

    def _scroll_to_top_of(self, entry: Entry) -> None:
        self.scroll_to_widget(entry, animate=False, top=True, immediate=True)
        self._follow_from_end()

    def _show_earlier_line(self) -> None:
        n_messages = _n_messages_in(self._earlier)
        self._earlier_line.display = bool(self._earlier)
        self._earlier_line.update(f"{n_messages} earlier messages: Page up shows them")

    # ---- scrolling

    @property
    def is_scrolled_up(self) -> bool:
        """Whether the end is out of sight."""
        return self.scroll_y < self.max_scroll_y - 1

    def content_row(self, screen_row: int) -> int:
        """Return the row of the content that the last layout put on a row of the screen.

        A layout may be ahead of ``scroll_y``.
        """
        return screen_row - self._messages.region.y + self._messages.virtual_region.y

    def _follow_from_end(self) -> None:
        """Follow new text if the end is in sight.

        Textual notices that only when a scroll moves something.
        """
        if not self.is_scrolled_up and not isinstance(self.screen.focused, MessageView):
            self.anchor()

    # A larger terminal or shorter text may have brought the end into sight.
    on_resize = _follow_from_end

    def scroll_pages(self, pages: int) -> None:
        """Scroll by pages, up if negative, or to the end for 0.

        Scrolling up at the top mounts earlier messages.
        """
        if pages > 0 and self._is_gap_in_sight:
            self._mount_between(EARLIER_AT_ONCE)
        if pages == 0:
            self.anchor()
        elif pages > 0 or self.scroll_y > 0 or not self.show_earlier():
            rows = pages * self.scrollable_content_region.height
            self.scroll_to(y=self.scroll_y + rows, animate=False, immediate=True)
            self._follow_from_end()

    @property
    def _is_gap_in_sight(self) -> bool:
        line = self._between_line
        return line is not None and line.region.overlaps(self.region)

    def on_mouse_scroll_down(self) -> None:
        """Mount messages of the gap when the mouse scrolls to it."""
        if self._is_gap_in_sight:
            self._mount_between(EARLIER_AT_ONCE)

    def on_mouse_scroll_up(self) -> None:
        """Mount earlier messages when the mouse scrolls up at the top."""
        if self.scroll_y <= 0:
            self.show_earlier()

    @property
    def has_unseen(self) -> bool:
        """Whether text was added below since the end was last in sight.

        Reading this records what is in sight now.
        """
        if not self.is_scrolled_up:
            self._seen = self._last_heights()
        return self._last_heights() != self._seen

    def _last_heights(self) -> list[tuple[Entry, int]]:
        return [(entry, entry.size.height) for entry in self._entries()[-2:]]

    def release_anchor(self) -> None:
        """Stop following new text; what is in sight counts as seen."""
        if not self.is_scrolled_up:
            self._seen = self._last_heights()
        super().release_anchor()


def _view_of_entry(entry: Entry | ChatMessage) -> Entry:
    """Return the widget of an entry that had none, or was unmounted."""
    if isinstance(entry, ChatMessage):
        return saved_view(entry)
    return entry


def _n_messages_in(entries: Sequence[Entry | ChatMessage]) -> int:
    return sum(isinstance(entry, (MessageView, ChatMessage)) for entry in entries)


def _is_divider(entry: Entry | ChatMessage) -> bool:
    return isinstance(entry, Note) and entry.has_class(_DIVIDER)
