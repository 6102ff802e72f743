"""Summaries of a conversation's oldest turns: requested, taken from the model's events, removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from app.backend.engine_thread import EngineThread
from app.conversations.conversation import USER, Conversation, Ending, PromptMessage
from app.conversations.journal import Journal
from app.conversations.session_options import SessionOptions
from app.documents.read import about_tokens
from app.program.bundled_model import is_starter
from app.program.refusals import Refusal
from app.session import events
from app.session.compaction import (
    FULL_SHARE,
    Compaction,
    begin_compaction,
    request_of,
    summary_text,
)
from app.session.events import Event
from app.session.request import Request
from app.session.running import Phase


class Turns(Protocol):
    """The members of ``ChatSession`` that summaries use."""

    phase: Phase
    conversation: Conversation
    model: events.ModelLoaded | None
    journal: Journal

    @property
    def is_busy(self) -> bool:
        """Whether something must end before the next turn."""

    @property
    def request_options(self) -> SessionOptions:
        """Choices that hold for the next request."""

    @property
    def queued_texts(self) -> list[str]:
        """Messages in the queue, oldest first."""

    def answered_request(self) -> Request:
        """Return the conversation without an unanswered message at its end."""

    def change_conversation(self, change: Callable[[Conversation], object]) -> bool:
        """Change the conversation and save that; return False while busy."""


class Summaries:
    """Summaries of the conversation of a chat session."""

    def __init__(self, chat_session: Turns, engine_thread: EngineThread) -> None:
        self._chat_session = chat_session
        self._engine_thread = engine_thread
        self._compaction: Compaction | None = None
        """Summary that is being written; None if there is none."""

    @property
    def is_writing_automatically(self) -> bool:
        """Whether a summary is being written that a message of the user ends."""
        return self._compaction is not None and self._compaction.is_automatic

    def begin(self, is_automatic: bool = False) -> bool:
        """Let the model summarize the oldest turns; return False while busy or without a model.

        Args:
            is_automatic: whether a message of the user ends it.

        Raises Refusal: there is too little to summarize, or the model cannot do it.
        """
        chat_session = self._chat_session
        if chat_session.is_busy or chat_session.model is None:
            return False
        if is_starter(chat_session.model.path):
            raise Refusal("the starter model cannot summarize: any other model can")
        compaction = begin_compaction(chat_session.conversation, is_automatic)
        request = request_of(compaction, chat_session.conversation, chat_session.request_options)
        if not self._engine_thread.reply(request):
            return False
        chat_session.phase = Phase.COMPACTING
        self._compaction = compaction
        return True

    def begin_if_full(self) -> bool:
        """Let the model summarize a context that fills, until the user sends a message.

        Returns:
            False if the context has room, or nothing can be summarized.
        """
        status = self._engine_thread.status
        if not status.n_ctx or status.context_used < FULL_SHARE * status.n_ctx:
            return False
        try:
            return self.begin(is_automatic=True)
        except Refusal:  # there is nothing but the last turn
            return False

    def remove(self) -> bool:
        """Let the model read the messages of the last summary again; return False while busy.

        Raises Refusal: there is none.
        """
        chat_session = self._chat_session
        if not chat_session.is_busy and chat_session.conversation.summary is None:
            raise Refusal("nothing is summarized in this conversation")
        return chat_session.change_conversation(Conversation.remove_summary)

    def take(self, event: Event) -> tuple[Event, ...] | None:
        """Take in an event of the summary that is being written.

        Returns:
            The events to show in place of it; None if it is not about a summary.
        """
        compaction = self._compaction
        if compaction is None:
            return None
        match event:
            case (
                events.TextGenerated()
                | events.ThoughtGenerated()
                | events.ThinkingFinished()
                | events.ReplyReopened()
            ):
                compaction.reply.take(event)
                return ()
            case events.TurnsDropped():
                return ()
            case events.GenerationFinished(ending=Ending.STOPPED) | events.PromptStopped():
                outcome: Event = events.CompactionEnded()
            case events.GenerationFinished():
                outcome = self._use(compaction)
            case events.GenerationFailed():
                outcome = events.CompactionEnded(event.reason)
            case events.PromptRefused():
                outcome = events.CompactionEnded("the messages do not fit the context")
            case _:
                return None
        self._compaction = None
        self._chat_session.phase = Phase.FREE
        if isinstance(outcome, events.ConversationCompacted):
            self._read_again()
        return (outcome,)

    def _use(self, compaction: Compaction) -> Event:
        """Let the model read the summary that was written, if it is of use."""
        conversation = self._chat_session.conversation
        try:
            text = summary_text(compaction, conversation)
        except Refusal as refusal:
            return events.CompactionEnded(str(refusal))
        conversation.summarize(text, compaction.n_messages)
        self._chat_session.journal.save_context(conversation)
        return events.ConversationCompacted(
            compaction.n_messages, compaction.n_tokens, about_tokens(text)
        )

    def _read_again(self) -> None:
        """Let the model read the summary and the turns after it, unless a message waits."""
        chat_session = self._chat_session
        self._engine_thread.inbox.state_path = chat_session.journal.state_path
        answered = chat_session.answered_request()
        request = replace(answered, messages=(*answered.messages, PromptMessage(USER, "")))
        if not chat_session.queued_texts and self._engine_thread.read(request):
            chat_session.phase = Phase.REREADING
