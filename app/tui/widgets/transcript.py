"""The conversation as it is read: messages from old to new, notes by the program between them.

A layout of the screen walks every widget there is, so a long conversation may not have many: of
messages far back only what they say is kept until the user goes there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeVar

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from app.conversations.conversation import ChatMessage
from app.tui.textual_hacks import draw_bar_that_moved
from app.tui.widgets.message_view import MessageView, Note, ReplyView, UserView, saved_view

MOST_MOUNTED = 40
"""Limit on mounted messages and notes; above it the oldest are put aside, down to
``KEPT_MOUNTED``."""
KEPT_MOUNTED = 24
EARLIER_AT_ONCE = 20

_DROPPED = "-dropped"
_DIVIDER = "-divider"

Entry = MessageView | Note
AnyEntry = TypeVar("AnyEntry", bound=Entry)


class Transcript(VerticalScroll, can_focus=False):
    """Stays at the bottom until the user scrolls up, and again once they scroll down to it."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        # As high as the view at least: Textual pushes anchored content that is lower down to the
        # bottom edge.
        self._messages = Vertical(id="messages")
        self.waiting: deque[UserView] = deque()
        """Messages that wait for their turn, at the end: what belongs to earlier ones is above
        them."""
        self._seen: list[tuple[Entry, int]] = []
        """The last entries and their heights when the end was in sight."""
        self._earlier: list[Entry | ChatMessage] = []
        """What was put aside, oldest first, never mounted; messages of an earlier conversation have
        no widget yet."""
        self._earlier_line = Static(markup=False, classes="note", id="earlier")
        self._earlier_line.display = False

    def compose(self) -> ComposeResult:
        """Lay out the one container that grows."""
        with self._messages:
            yield self._earlier_line

    def on_mount(self) -> None:
        """Follow what is added."""
        self.anchor()
        draw_bar_that_moved(self)

    def add_user(self, text: str, folded: str = "") -> UserView:
        """Show what the user said, with its large pastes folded; the view follows it."""
        view = UserView(text, folded)
        self._messages.mount(view)
        self.anchor()
        return view

    def add(self, entry: AnyEntry) -> AnyEntry:
        """Show a reply that is about to begin, results of tools or a note, above the first message
        that still waits."""
        if isinstance(entry, Note):
            self._follow_from_end()
        self._messages.mount(entry, before=self.waiting[0] if self.waiting else None)
        return entry

    def put_in_place(self, before: MessageView | None, view: MessageView) -> None:
        """Show a message in place of another."""
        if before is None:
            self.add(view)
        else:
            self._messages.mount(view, after=before)
            self.drop([before])

    async def fill(self, messages: Sequence[ChatMessage]) -> None:
        """Show an earlier conversation where nothing is shown yet: its end, and the rest on
        demand."""
        self._earlier += messages[:-KEPT_MOUNTED]
        shown = [saved_view(message) for message in messages[-KEPT_MOUNTED:]]
        self._show_earlier_line()
        mounted = self._messages.mount_all(shown)
        self.anchor()
        await mounted

    def divide(self, message: ChatMessage, text: str) -> None:
        """Show a line above a message, in place of an earlier such line."""
        note = Note(text)
        note.add_class(_DIVIDER)
        self.drop([entry for entry in self._entries() if entry.has_class(_DIVIDER)])
        self._earlier = [
            one for one in self._earlier if not (isinstance(one, Note) and one.has_class(_DIVIDER))
        ]
        if (at := self._place_of(message)) is not None:
            self._earlier.insert(at, note)
        elif (view := self._mounted(message)) is not None:
            self._messages.mount(note, before=view)

    def _place_of(self, message: ChatMessage) -> int | None:
        """Return where a message is among those put aside."""
        places = enumerate(self._earlier)
        return next(
            (i for i, one in places if one is message or getattr(one, "message", None) is message),
            None,
        )

    def _mounted(self, message: ChatMessage) -> MessageView | None:
        return next((view for view in self.messages() if view.message is message), None)

    def toggle_folds(self) -> None:
        """Show pasted text whole; where it is, fold it again."""
        views = [view for view in self.query(UserView) if view.folded]
        is_any_folded = any(not view.is_unfolded for view in views)
        for view in views:
            view.unfold(is_any_folded)

    @property
    def is_scrolled_up(self) -> bool:
        """Whether its end is out of sight."""
        return self.scroll_y < self.max_scroll_y - 1

    def _follow_from_end(self) -> None:
        """Follow what is added if the end is in sight: Textual notices that only when a scroll
        moves something."""
        if not self.is_scrolled_up and not isinstance(self.screen.focused, MessageView):
            self.anchor()

    on_resize = (
        _follow_from_end  # a larger terminal or shorter text may have brought the end into sight
    )

    def messages(self) -> list[MessageView]:
        """Return the messages of both sides that are shown, oldest first."""
        return [entry for entry in self._entries() if isinstance(entry, MessageView)]

    def replies(self) -> list[ReplyView]:
        """Return the replies that are shown, oldest first."""
        return [entry for entry in self._entries() if isinstance(entry, ReplyView)]

    def end_offers(self) -> None:
        """No reply is one to go on with any more."""
        for view in self.replies()[-2:]:
            view.offer("")

    def view_of(self, message: ChatMessage) -> MessageView | None:
        """Return the widget of a message; one that was put aside comes back with all after it."""
        if (at := self._place_of(message)) is not None:
            self.show_earlier(len(self._earlier) - at)
        return self._mounted(message)

    def drop(self, entries: Sequence[Entry]) -> None:
        """Take messages or notes away for good."""
        for entry in entries:
            # It stays among the children for a moment.
            entry.add_class(_DROPPED)
        self._messages.remove_children(entries)

    async def clear(self) -> None:
        """Begin again, with nothing but the messages that wait."""
        self._earlier.clear()
        self._show_earlier_line()
        await self._messages.remove_children(
            [entry for entry in self._entries() if entry not in self.waiting]
        )
        self.anchor()

    def slim(self) -> None:
        """Let old messages cost nothing, unless the user has scrolled up to them."""
        entries = self._entries()
        # an edit took the later ones away
        if len(entries) < KEPT_MOUNTED and self._bring_back(EARLIER_AT_ONCE):
            self.anchor()
        if len(entries) <= MOST_MOUNTED or self.is_scrolled_up:
            return
        aside = entries[:-KEPT_MOUNTED]
        self._earlier += [entry.again() for entry in aside]
        self.drop(aside)
        self._show_earlier_line()

    def show_earlier(self, n_entries: int = EARLIER_AT_ONCE) -> bool:
        """Bring back the newest of what was put aside, where the user is; False when nothing is
        left."""
        first = next(iter(self._entries()), None)
        if not self._bring_back(n_entries):
            return False
        self.release_anchor()
        if first is not None:
            self.call_after_refresh(self._show_at_top, first)
        return True

    def _bring_back(self, n_entries: int) -> bool:
        put_aside = self._earlier[-n_entries:]
        back = [
            saved_view(entry) if isinstance(entry, ChatMessage) else entry for entry in put_aside
        ]
        del self._earlier[-n_entries:]
        self._messages.mount_all(back, after=self._earlier_line)
        self._show_earlier_line()
        return bool(back)

    def _show_at_top(self, entry: Entry) -> None:
        self.scroll_to_widget(entry, animate=False, top=True, immediate=True)
        self._follow_from_end()

    def go(self, pages: int) -> None:
        """Scroll by pages, up if negative, or to the end for 0; at the top, bring back what was put
        aside."""
        if pages == 0:
            self.anchor()
        elif pages > 0 or self.scroll_y > 0 or not self.show_earlier():
            rows = pages * self.scrollable_content_region.height
            self.scroll_to(y=self.scroll_y + rows, animate=False, immediate=True)
            self._follow_from_end()

    @property
    def has_unseen(self) -> bool:
        """Whether something was added below since the end was in sight; call it now and then, it
        takes note of that."""
        if not self.is_scrolled_up:
            self._seen = self._ends()
        return self._ends() != self._seen

    def _ends(self) -> list[tuple[Entry, int]]:
        return [(entry, entry.size.height) for entry in self._entries()[-2:]]

    def release_anchor(self) -> None:
        """Follow no more; what is there now counts as seen."""
        if not self.is_scrolled_up:
            self._seen = self._ends()
        super().release_anchor()

    def on_mouse_scroll_up(self) -> None:
        """Do the same for the mouse."""
        if self.scroll_y <= 0:
            self.show_earlier()

    def _entries(self) -> list[Entry]:
        entries = (
            child for child in self._messages.children if isinstance(child, (MessageView, Note))
        )
        return [entry for entry in entries if not entry.has_class(_DROPPED)]

    def _show_earlier_line(self) -> None:
        n_messages = sum(isinstance(entry, (MessageView, ChatMessage)) for entry in self._earlier)
        self._earlier_line.display = bool(self._earlier)
        self._earlier_line.update(f"{n_messages} earlier messages: Page up shows them")
