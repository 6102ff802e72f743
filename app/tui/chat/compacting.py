"""Summaries of the oldest turns in the chat: requested by a command or in idle time, and shown."""

from __future__ import annotations

from app.conversations.conversation import Conversation
from app.session import commands, events
from app.session.compaction import ON
from app.session.events import Event
from app.tui.chat.core import ChatCore
from app.tui.textual_hacks import call_once

PAUSE_S = 5.0
"""Seconds without a message after a reply before a full context is summarized."""
DROPPED_ABOVE = "---- the model no longer sees what is above ----"
SUMMARIZED_ABOVE = "---- the model reads a summary of what is above ----"


def mark_of_context(conversation: Conversation) -> str:
    """Return the line above the first message that the model sees."""
    if conversation.summary is None:
        return DROPPED_ABOVE
    return SUMMARIZED_ABOVE


class CompactionPart:
    """The command for summaries, and what the chat shows of them."""

    def __init__(self, core: ChatCore) -> None:
        self._core = core

    def action_compact(self, argument: str = "") -> None:
        """Let the model summarize the oldest turns, show its summary, or remove it."""
        core = self._core
        conversation = core.chat_session.conversation
        with core.refusals_said(is_error=False):
            if commands.is_compact_show(argument):
                core.say(commands.summary_shown(conversation))
            elif commands.is_compact_undo(argument):
                self._remove_summary()
            else:
                self._begin()

    def _begin(self) -> None:
        core = self._core
        if core.refuses_while_busy():
            return
        if core.chat_session.model is None:
            core.say_no_model()
            return
        if core.chat_session.summaries.begin():
            self._say_begun()

    def _say_begun(self) -> None:
        core = self._core
        stop = core.keymap.hint("chat.stop", "stops it")
        core.say(" · ".join(filter(None, ("Summarizing the oldest turns ...", stop))))

    def _remove_summary(self) -> None:
        core = self._core
        if core.refuses_while_busy():
            return
        core.chat_session.summaries.remove()
        self.show_mark()
        core.say(commands.summary_removed_line(core.chat_session.conversation))

    def show_mark(self) -> None:
        """Mark where the messages begin that the model sees."""
        core = self._core
        first = core.chat_session.first_in_context
        if core.chat_session.conversation.n_dropped and first is not None:
            core.transcript.divide(first, mark_of_context(core.chat_session.conversation))
        else:
            core.transcript.remove_divider()

    def show(self, event: Event) -> None:
        """Show the end of a summary; what it replaces is folded away, above the mark."""
        core = self._core
        if isinstance(event, events.ConversationCompacted):
            first = core.chat_session.first_in_context
            self.show_mark()
            if first is not None and not core.transcript.is_scrolled_up:
                core.transcript.fold_before(first)
        core.say_event(event)

    def request_soon(self) -> None:
        """Let the model summarize a context that fills once the user pauses, if they want that."""
        if self._core.settings.compact == ON:
            call_once(self._core.screen, PAUSE_S, self._request)

    def _request(self) -> None:
        core = self._core
        if not core.prompt.text and core.chat_session.summaries.begin_if_full():
            self._say_begun()
