"""The conversation as it is read: messages from old to new, notes by the program between them."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll

from app.widgets.message_view import Note, ReplyView, UserView

RICH_REPLIES = 12
"""So many of the newest replies are shown as Markdown; older ones as plain text, which costs far less layout."""


class Transcript(VerticalScroll, can_focus=False):
    """Stays at the bottom until the user scrolls up, and again once they scroll down to it."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__(id=id)
        # As high as the view at least: Textual pushes anchored content that is lower down to the bottom edge.
        self._messages = Vertical(id="messages")

    def compose(self) -> ComposeResult:
        """Lay out the one container that grows."""
        yield self._messages

    def on_mount(self) -> None:
        """Follow what is added."""
        self.anchor()

    def add_user(self, text: str, folded: str = "") -> UserView:
        """Show what the user said, with its large pastes folded; the view follows it."""
        view = UserView(text, folded)
        self._messages.mount(view)
        self.anchor()
        return view

    def add_reply(self, waiting: UserView | None = None) -> ReplyView:
        """Show a reply that is about to begin, above the first message that still waits for its own."""
        view = ReplyView()
        self._messages.mount(view, before=waiting)
        self._simplify_old_replies()
        return view

    def add_note(self, text: str, is_error: bool = False, waiting: UserView | None = None) -> None:
        """Show a line by the program, above the first message that still waits."""
        self._messages.mount(Note(text, is_error), before=waiting)

    def toggle_folds(self) -> None:
        """Show pasted text whole; where it is, fold it again."""
        views = [view for view in self.query(UserView) if view.folded]
        is_any_folded = any(not view.is_unfolded for view in views)
        for view in views:
            view.unfold(is_any_folded)

    def notes(self) -> list[str]:
        """Return the program's lines, oldest first."""
        return [note.text for note in self.query(Note)]

    def replies(self) -> list[ReplyView]:
        """Return the replies, oldest first."""
        return list(self.query(ReplyView))

    async def clear(self) -> None:
        """Begin anew."""
        await self._messages.remove_children()
        self.anchor()

    def _simplify_old_replies(self) -> None:
        for view in self.replies()[:-RICH_REPLIES]:
            self.call_later(view.body.simplify)
