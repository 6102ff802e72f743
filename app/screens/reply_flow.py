"""How a reply comes onto the screen: what the engine reports of a turn, from its first word to its figures."""

from __future__ import annotations

from collections import deque

from textual.screen import Screen

from app import figures
from app.clean_text import clean_text
from app.conversation import Ending, ReplyFigures
from app.events import (
    GenerationFailed,
    GenerationFinished,
    PromptRefused,
    PromptStopped,
    ReplyReopened,
    TextGenerated,
    ThinkingFinished,
    ThoughtGenerated,
)
from app.screens.drafting import Drafting
from app.turns import Turns
from app.widgets.message_view import MessageView, ReplyView, UserView
from app.widgets.prompt import Prompt
from app.widgets.transcript import Transcript


class ReplyFlow(Screen[None]):
    """The part of the chat that listens to a turn.

    Attributes:
        turns: whose turn it is.
        transcript, prompt: the widgets; there once the screen is mounted.
        drafting: what happens around the prompt while a message is written.
    """

    turns: Turns
    transcript: Transcript
    prompt: Prompt
    drafting: Drafting

    def __init__(self) -> None:
        super().__init__()
        self._reply: ReplyView | None = None
        self._asked: UserView | None = None
        self._queued: deque[UserView] = deque()
        self._replaced: list[MessageView] = []
        """What goes when the running reply begins, and stays if it does not."""
        self._focuses_stopped = False

    def note(self, text: str, is_error: bool = False) -> None:
        """Say something between the messages; the text is cleaned here."""
        self.transcript.add_note(clean_text(text), is_error, self._waiting)

    def show_text(self, message: TextGenerated) -> None:
        """Let the reply grow."""
        self.turns.note_text(message.text)
        self._growing_reply().body.append(message.text)

    def show_thought(self, message: ThoughtGenerated) -> None:
        """Let the thinking grow."""
        self.turns.note_thought(message.text)
        self._growing_reply().think(message.text)

    def fold_thinking(self, message: ThinkingFinished) -> None:
        """Fold the thinking to one line."""
        thinking = self.turns.note_thinking(message.tokens, message.duration_s, message.is_closed)
        self._growing_reply().finish_thinking(thinking)

    def reopen_reply(self, _: ReplyReopened) -> None:
        """The reply that goes on comes again from its beginning, as a new one in its place."""
        self.turns.note_reopened()

    def finish_reply(self, message: GenerationFinished) -> None:
        """Freeze the reply with its figures."""
        view = self._finish(message.ending, message.figures, message.ids, message.raw)
        self._ask_next()
        if message.ending is Ending.STOPPED and self._focuses_stopped and not self.turns.is_busy:
            self.call_after_refresh(self.focus_stopped, view)
        self._focuses_stopped = False

    def focus_stopped(self, view: ReplyView) -> None:
        """Put the focus on a reply that Esc stopped, where its keys act."""

    def show_failure(self, message: GenerationFailed) -> None:
        """Say why there is no reply, or only half of one; the chat goes on."""
        if message.figures is not None:
            self._finish(Ending.FAILED, message.figures, message.ids, message.raw)
            self.note(message.reason, is_error=True)
        elif self._leave_unanswered():
            self.note(f"{message.reason} (the conversation is as it was)", is_error=True)
        else:
            self.note(f"{message.reason} (/regen asks again)", is_error=True)
        self._ask_next()

    def show_stop(self, _: PromptStopped) -> None:
        """Say that the question stays unanswered, or the conversation as it was."""
        if self._leave_unanswered():
            self.note("stopped before anything new came; the conversation is as it was")
        else:
            self.note("stopped before the reply began (/regen asks again)")
        self._ask_next()

    def give_back(self, message: PromptRefused) -> None:
        """Return a message that does not fit to where it came from."""
        asked, edited = self._asked, self._edited_question()
        text = self.turns.take_back()
        self._keep_replaced()
        if edited is not None:
            self._take_edit_back(edited)
        else:
            if asked is not None:
                asked.mark("not sent")
            self.prompt.give_back(text)
        self._asked = None
        needed, n_ctx = figures.count(message.needed_tokens), figures.count(message.n_ctx)
        self.note(
            f"Not sent: this message alone, with the system prompt and room for a reply, needs {needed} tokens; "
            f"the context holds {n_ctx}. Shorten it, or choose a larger context_size.",
            is_error=True,
        )
        self._ask_next()

    @property
    def _waiting(self) -> UserView | None:
        """The first message that waits its turn: what belongs to earlier ones stands above it."""
        return self._queued[0] if self._queued else None

    def _growing_reply(self) -> ReplyView:
        """Return the running reply's view; its first word takes the place of what it replaces."""
        if self._reply is None:
            self.transcript.drop(self._replaced)
            self._replaced.clear()
            self._reply = self.transcript.add_reply(self._waiting)
        return self._reply

    def _finish(
        self, ending: Ending, reply_figures: ReplyFigures, ids: tuple[int, ...] = (), raw: str = ""
    ) -> ReplyView:
        view = self._growing_reply()
        view.message = self.turns.note_reply(ending, reply_figures, ids, raw)
        view.finish(figures.reply_footer(view.message.figures, ending, is_edited=view.message.is_edited))
        # When the last pass of its Markdown is done, and with it the number of widgets known.
        self.call_after_refresh(self.transcript.slim)
        self._reply = self._asked = None
        return view

    def _leave_unanswered(self) -> bool:
        """The turn has no reply; True when what it would have replaced is back."""
        edited = self._edited_question()
        is_restored = self.turns.note_unanswered()
        self._keep_replaced()
        if edited is not None:
            self._take_edit_back(edited)
        elif self._asked is not None and not is_restored:
            self._asked.mark("not answered")
        self._reply = self._asked = None
        return is_restored

    def _edited_question(self) -> UserView | None:
        """Return the message of the running turn, if it takes the place of an earlier one."""
        return self._asked if self._replaced and isinstance(self._replaced[0], UserView) else None

    def _take_edit_back(self, edited: UserView) -> None:
        self.transcript.drop([edited])
        if not self.edit_again():
            self.prompt.give_back(edited.text)

    def edit_again(self) -> bool:
        """Let an edited message that was sent for nothing stand in the prompt as before; False where it cannot."""
        return False

    def _keep_replaced(self) -> None:
        for view in self._replaced:
            view.set_replaced(False)
        self._replaced.clear()

    def _replace(self, views: list[MessageView]) -> None:
        """Mark what the turn that begins now takes the place of."""
        self._replaced = views
        for view in views:
            view.set_replaced(True)

    def _ask_next(self) -> None:
        if self.turns.ask_next():
            self._asked = self._queued.popleft()
            self._asked.mark("")
            self._asked.message = self.turns.conversation.messages[-1]
            self.prompt.has_waiting = bool(self._queued)
        self.drafting.note_free()
