"""The widgets of the running turn: what was asked, the reply that comes, and what both take the place of."""

from __future__ import annotations

from collections.abc import Callable

from app.chat.turns import SENT_TOGETHER, Turns
from app.conversations import lines
from app.conversations.conversation import ChatMessage
from app.tui.widgets.message_view import MessageView, ReplyView, UserView
from app.tui.widgets.transcript import Transcript

GOES_ON = "/continue goes on"
"""Stands behind the figures of a reply that is not complete."""


class TurnViews:
    """One turn at a time."""

    def __init__(self, transcript: Transcript, turns: Turns, note: Callable[[str], object]) -> None:
        self._transcript, self._turns, self._note = transcript, turns, note
        self._reply: ReplyView | None = None
        self.asked: UserView | None = None
        self._replaced: list[MessageView] = []
        """Messages that are removed when the running reply begins, and stay if it does not."""
        self._joined: MessageView | None = None
        """The unanswered message that the running turn's message was sent with."""

    @property
    def edited_question(self) -> UserView | None:
        """The message of the turn, if it takes the place of an earlier one."""
        return self.asked if self._replaced and isinstance(self._replaced[0], UserView) else None

    def ask(self, view: UserView) -> None:
        """The turn of this message begins, and of the unanswered one that goes with it, if there is one."""
        self._transcript.end_offers()
        self.asked, view.message = view, self._turns.last_message
        before = self._turns.joined
        self._joined = self._transcript.view_of(before) if before is not None else None
        if before is not None:
            self._note(SENT_TOGETHER)
        if isinstance(self._joined, UserView):
            self._joined.message = self._turns.last_message
            self._joined.mark("sent with the next message")

    def part(self) -> None:
        """The message was not sent, and the one that would have gone with it is what it was."""
        if isinstance(self._joined, UserView):
            self._joined.message = self._turns.last_message
            self._joined.mark("not answered")
        self._joined = None

    def replace(self, views: list[MessageView]) -> None:
        """Mark what the turn that begins now takes the place of."""
        self._transcript.end_offers()
        self._replaced = views
        for view in views:
            view.set_replaced(True)

    def growing_reply(self) -> ReplyView:
        """Return the reply's view; its first word takes the place of what it replaces."""
        if self._reply is None:
            self._transcript.drop(self._replaced)
            self._replaced.clear()
            self._reply = self._transcript.add_reply()
        return self._reply

    def keep_replaced(self) -> None:
        """No reply comes: what it would have replaced stays."""
        for view in self._replaced:
            view.set_replaced(False)
        self._replaced.clear()

    def end(self) -> None:
        """The turn is over."""
        self._reply = self.asked = self._joined = None

    def forget(self) -> None:
        """Another conversation is shown."""
        self.asked, self._joined, self._replaced = None, None, []


def footers(message: ChatMessage) -> tuple[str, str, str]:
    """Return the line below a reply, what else there is room for on a wide screen, and its sources."""
    line = lines.reply_footer(message.figures, message.ending, message.is_edited)
    return line, lines.reply_details(message.figures), lines.sources_line(message.sources)
