"""Going from the prompt to a message and back."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen

from app.tui.messages import MessageLeft
from app.tui.screens.notes import Notes
from app.tui.widgets.message_view import MessageView, ReplyView
from app.tui.widgets.prompt import Prompt
from app.tui.widgets.transcript import Transcript


class MessageFocus:
    """Moves the focus between the prompt and the messages."""

    def __init__(self, screen: Screen[Any], transcript: Transcript, prompt: Prompt, notes: Notes) -> None:
        self._screen, self._transcript, self._prompt, self._notes = screen, transcript, prompt, notes

    @property
    def is_on_message(self) -> bool:
        """Whether a message has it."""
        return isinstance(self._screen.focused, MessageView)

    def to_prompt(self) -> None:
        """Go to the prompt, and to the end of the transcript."""
        self._notes.hint()
        self._prompt.focus()
        self._transcript.anchor()

    def step(self, step: int) -> None:
        """Go down by ``step`` messages, up if negative; below the newest message is the prompt."""
        views, focused = self._transcript.messages(), self._screen.focused
        at = views.index(focused) if isinstance(focused, MessageView) and focused in views else len(views)
        if at + step >= len(views):
            self.to_prompt()
            return
        if at + step < 0 and self._transcript.show_earlier():
            views, n_shown = self._transcript.messages(), len(views)
            at += len(views) - n_shown
        if at + step >= 0:
            self._transcript.release_anchor()
            views[at + step].focus()
            self._notes.hint_keys_of(views[at + step])

    def leave_message(self, message: MessageLeft) -> None:
        """Go to the prompt, with what was typed to do so."""
        self.to_prompt()
        if message.event is not None:
            self._prompt.post_message(message.event)

    def to_stopped(self, view: ReplyView) -> None:
        """Go to a reply that Esc stopped, where its keys act, unless the user is writing the next message."""
        if self._screen.focused is self._prompt and not self._prompt.text:
            view.hesitates = True
            view.focus(scroll_visible=False)  # what is being read stays in sight
            self._notes.hint_keys_of(view)
