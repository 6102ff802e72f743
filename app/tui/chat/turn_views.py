"""Views of the running turn, shared by the parts that begin, show and end it."""

from __future__ import annotations

from collections.abc import Sequence

from app.session.line_of import SENT_TOGETHER
from app.tui.chat.core import ChatCore
from app.tui.widgets.message_view import MessageView, ReplyView, UserView


class TurnViews:
    """Views of the running turn: its message, its reply, and messages that the reply replaces."""

    def __init__(self, core: ChatCore) -> None:
        self._core = core
        self.question: UserView | None = None
        """The user's message or the tool results that the model answers; None between turns."""
        self._reply: ReplyView | None = None
        self._replaced: Sequence[MessageView] = ()
        """Messages that are removed when the reply begins, and stay if there is no reply."""
        self._joined: MessageView | None = None
        """An earlier unanswered message that was sent along with this turn's message."""

    @property
    def edited_question(self) -> UserView | None:
        """The turn's message if it replaces an earlier message of the user, else None."""
        if self._replaced and isinstance(self._replaced[0], UserView):
            return self.question
        return None

    def begin(self, view: UserView) -> None:
        """Begin the turn of a message, and of an unanswered message that is sent along."""
        chat_session = self._core.chat_session
        self._core.transcript.end_offers()
        self.question = view
        view.message = chat_session.last_message
        self._joined = None
        if chat_session.joined_message is not None:
            self._joined = self._core.transcript.view_of(chat_session.joined_message)
            self._core.say(SENT_TOGETHER)
        self._show_joined_as("sent with the next message")

    def unjoin(self) -> None:
        """Mark the message that was sent along as unanswered: this turn's message was refused."""
        self._show_joined_as("not answered")
        self._joined = None

    def _show_joined_as(self, footer: str) -> None:
        if isinstance(self._joined, UserView):
            self._joined.message = self._core.chat_session.last_message
            self._joined.show_footer(footer)

    def replace(self, views: Sequence[MessageView]) -> None:
        """Mark messages that the turn's reply will replace."""
        self._core.transcript.end_offers()
        self._replaced = views
        for view in views:
            view.set_replaced(True)

    def restore_replaced(self) -> None:
        """Keep the messages that the reply would have replaced: there is no reply."""
        for view in self._replaced:
            view.set_replaced(False)
        self._replaced = ()

    def reply(self) -> ReplyView:
        """Return the growing reply; the first call removes the messages that it replaces."""
        if self._reply is None:
            self._core.transcript.drop(self._replaced)
            self._replaced = ()
            self._reply = self._core.transcript.add(ReplyView())
        return self._reply

    def end(self) -> None:
        """End the turn."""
        self._reply = None
        self.question = None
        self._joined = None

    def forget(self) -> None:
        """Forget the turn's messages: another conversation is shown."""
        self.question = None
        self._joined = None
        self._replaced = ()
