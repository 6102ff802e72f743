"""A conversation with a model without a screen: each request yields events until the engine is
free."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from app.backend.engine_thread import EngineThread
from app.backend.options import ChatOptions
from app.backend.reply_text import TextEvent
from app.backend.status import EngineStatus
from app.conversations.conversation import Conversation
from app.conversations.journal import ConversationStorage
from app.conversations.pictures import Picture
from app.conversations.store import LoadedConversation
from app.machine.tuning.threads_in_use import ThreadsInUse
from app.program.remote_model import ModelPlace
from app.session import events
from app.session.chat_session import Admission, ChatSession
from app.session.request import Request
from app.session.tool_rounds import open_calls
from engine.prompt.tools.calls import ToolCall

EndOfTurn = (
    events.GenerationFinished
    | events.GenerationFailed
    | events.PromptStopped
    | events.PromptRefused
)

TEXT_EVENTS = TextEvent | events.PieceGenerated
"""Events with text that is printed."""
POLL_S = 0.1
"""Interval at which a stop is noticed and progress is shown."""
SAVE_PERIOD_S = 1.5
LEAST_SAVED_APART_S = 0.05
"""Text that arrives within this time is saved, and then printed, together."""
WRITING_PATIENCE_S = 2.0
"""Limit on the wait for a disk that does not respond; text printed after it may be lost by a
kill."""
SAVING_PATIENCE_S = 10.0
HURRIED_PATIENCE_S = 1.0
"""Limit when a signal ends the program: its exit code must come within two seconds."""


class NothingToDoError(Exception):
    """The request is not possible now; the message is the reason."""


class HeadlessChat:
    """A conversation with one model at a time.

    The methods that return an iterator do their work while it is iterated over. Use one thread at
    a time; dropping the iterator stops the work. Any thread and any signal handler may call
    ``stop``.

    Args:
        storage: saved conversations; None saves nothing.
        system: system prompt; None for none.
        clock: monotonic clock in seconds.
        on_status: called with the engine's status while it works.
        may_read_ahead: whether the engine may work while nothing is requested; called each time.
        may_run: returns whether a tool may run; called in the thread that iterates.
        today: returns the date that new conversations name, or "" for none.

    Attributes:
        store: saved conversations; None if nothing is saved.
        is_restored: whether the last turn ended without a reply and the conversation is as it was.
    """

    def __init__(
        self,
        options: ChatOptions,
        storage: ConversationStorage | None = None,
        system: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_status: Callable[[EngineStatus], object] = lambda status: None,
        may_read_ahead: Callable[[], bool] = bool,
        may_run: Callable[[ToolCall], bool] = lambda call: False,
        today: Callable[[], str] = str,
    ) -> None:
        self._storage = storage or ConversationStorage()
        self._on_status = on_status
        self._may_read_ahead = may_read_ahead
        self._may_run = may_run
        self.engine_thread = EngineThread(options, clock)
        self.chat_session = ChatSession(
            self.engine_thread, system, self._storage.journal, SAVING_PATIENCE_S, today
        )
        self.store = self._storage.store
        self.is_restored = False
        self._awaited: type[events.Event] | None = None
        """Event that ends a request which the chat session does not know; None if there is none."""
        self._is_completing = False
        """Whether a plain text is continued, outside the conversation."""
        self._has_joined_message = False
        """Whether an unanswered message was sent too, and it is not known yet whether both fit."""
        self._is_stop_requested = False
        self._saved_s = 0.0
        self.engine_thread.start()

    # ---- models and conversations

    def open(
        self, path: ModelPlace, opened: LoadedConversation | None = None
    ) -> Iterator[events.Event]:
        """Open the first model, with a saved conversation or a new one."""
        if opened is not None:
            self.chat_session.open_saved(opened)
        self.chat_session.load(path, keeps=opened is not None, rereads=False)
        if opened is not None and self.chat_session.has_context:
            self._awaited = events.ConversationResumed
        return self._follow()

    def switch_model(self, path: ModelPlace) -> Iterator[events.Event]:
        """Open another model, which reads the conversation and continues it."""
        self._finish_earlier()
        self.chat_session.load(path, keeps=True, rereads=True)
        return self._follow()

    def begin(
        self,
        system: str | None,
        sampling: Mapping[str, float] | None = None,
        persona: str = "",
    ) -> Iterator[events.Event]:
        """Begin a new conversation, as ``ChatSession.start_new`` does."""
        self._finish_earlier()
        self.chat_session.start_new(system, sampling, persona)
        return self._follow()

    def begin_next(self, is_private: bool = False) -> Iterator[events.Event]:
        """Begin a new conversation, as ``ChatSession.start_next`` does."""
        self._finish_earlier()
        self.chat_session.start_next(is_private=is_private)
        return self._follow()

    def use_adapters(self, adapters: tuple[str, ...]) -> Iterator[events.Event]:
        """Replace the adapters of the model."""
        self._finish_earlier()
        return self._follow_turn(self.chat_session.use_adapters(adapters), "no model is loaded")

    def request_threads(self, threads: ThreadsInUse) -> Iterator[events.Event]:
        """Use other threads."""
        self._finish_earlier()
        self._awaited = events.ThreadsChanged
        self.engine_thread.request_threads(threads)
        return self._follow()

    # ---- turns

    def ask(
        self, text: str, pictures: tuple[Picture, ...] = (), folded: str = ""
    ) -> Iterator[events.Event]:
        """Answer a message.

        Args:
            folded: text with files folded; "" if there are none.
        """
        self._finish_earlier()
        is_sent = self.chat_session.submit(text, folded, pictures) is Admission.SENT
        return self._follow_turn(is_sent, "no model is loaded")

    def regenerate(self) -> Iterator[events.Event]:
        """Answer the last message again, or for the first time if it has no answer."""
        self._finish_earlier()
        return self._follow_turn(self.chat_session.regenerate(), "there is no answer to give again")

    def continue_reply(self) -> Iterator[events.Event]:
        """Continue the last reply if it is incomplete."""
        self._finish_earlier()
        return self._follow_turn(
            self.chat_session.continue_reply(), "there is no unfinished answer at the end"
        )

    def edit(self, n_turn: int, text: str) -> Iterator[events.Event]:
        """Replace the message of a turn and everything after it; ``n_turn`` counts from 0."""
        self._finish_earlier()
        is_sent = self.chat_session.submit_edit(text, n_turn)
        return self._follow_turn(is_sent, "no model is loaded")

    def edit_reply(self, n_turn: int, text: str) -> Iterator[events.Event]:
        """Continue an edited reply, in place of the reply and everything after it."""
        self._finish_earlier()
        is_sent = self.chat_session.submit_edited_reply(text, n_turn)
        return self._follow_turn(is_sent, "no model is loaded")

    def change_conversation(
        self, change: Callable[[Conversation], object]
    ) -> Iterator[events.Event]:
        """Change the conversation, as ``ChatSession.change_conversation`` does."""
        self._finish_earlier()
        self.chat_session.change_conversation(change)
        if self.chat_session.model is not None and self.chat_session.has_context:
            self._awaited = events.ConversationResumed
        return self._follow()

    def compact(self) -> Iterator[events.Event]:
        """Let the model summarize the oldest turns. Raises Refusal: there is too little."""
        self._finish_earlier()
        return self._follow_turn(self.chat_session.summaries.begin(), "no model is loaded")

    def compact_if_full(self) -> Iterator[events.Event] | None:
        """Begin to summarize a context that fills; return None if there is no need.

        Another thread may iterate over the events if this one only calls ``stop`` meanwhile.
        """
        self._finish_earlier()
        if not self.chat_session.summaries.begin_if_full():
            return None
        return self._follow()

    def remove_summary(self) -> Iterator[events.Event]:
        """Let the model read the messages of the last summary again. Raises Refusal: there is
        none."""
        self._finish_earlier()
        self.chat_session.summaries.remove()
        if self.chat_session.model is not None and self.chat_session.has_context:
            self._awaited = events.ConversationResumed
        return self._follow()

    def complete(self, text: str) -> Iterator[events.Event]:
        """Continue a plain text, outside the conversation."""
        self._finish_earlier()
        request = Request(plain=text, options=self.chat_session.request_options)
        self._is_completing = self.engine_thread.reply(request)
        return self._follow_turn(self._is_completing, "the engine has too much to do")

    def read(self, text: str, folded: str, title: str) -> Iterator[events.Event]:
        """Prefill a message that the user will complete, and save the conversation and the state.

        The text of the user's next message is appended to this one.
        """
        self._finish_earlier()
        is_begun = self.chat_session.read(text, folded, title)
        return self._follow_turn(is_begun, "the engine has too much to do")

    def read_ahead(self, text: str) -> None:
        """Prefill the documents that the next message begins with, until anything is requested."""
        if self._may_read_ahead():
            self.chat_session.read_ahead(text.strip(), is_read=True, is_settled=True)

    # ---- ending

    def stop(self) -> None:
        """Stop the running request; the text of a reply so far stays."""
        # No lock: a signal may come while this thread holds it.
        self._is_stop_requested = True

    @property
    def is_stopping(self) -> bool:
        """Whether a stop is requested and has not been passed on yet."""
        return self._is_stop_requested

    def close(self, is_hurried: bool = False) -> str:
        """Save everything and end the engine thread.

        Args:
            is_hurried: whether to wait for nothing but the disk.

        Returns:
            The reason why the conversation is not saved; empty if it is.
        """
        with suppress(Exception):
            self.chat_session.save_partial()
        if is_hurried:
            self.engine_thread.close(0.0)
            return self.chat_session.journal.close(HURRIED_PATIENCE_S)
        self._finish_earlier()
        self.engine_thread.close(SAVING_PATIENCE_S, SAVING_PATIENCE_S)
        trouble = self.chat_session.journal.close(SAVING_PATIENCE_S)
        self._storage.tidy()
        return trouble

    # ---- events

    @property
    def _is_busy(self) -> bool:
        return self.chat_session.is_busy or self._is_completing or self._awaited is not None

    def _finish_earlier(self) -> None:
        """Stop and finish an earlier request whose iterator was dropped."""
        if self._is_busy:
            self.stop()
            for _ in self._follow():
                pass
        self._is_stop_requested = False

    def _follow_turn(self, is_begun: bool, refusal: str) -> Iterator[events.Event]:
        """Return the events of a turn.

        Raises NothingToDoError: the turn has not begun.
        """
        if not is_begun:
            raise NothingToDoError(refusal)
        self.is_restored = False
        running = self.chat_session.running
        self._has_joined_message = running is not None and running.joined is not None
        return self._follow()

    def _follow(self) -> Iterator[events.Event]:
        """Yield events until the engine is free.

        An event is part of the conversation, and its text is saved, before it is yielded.
        """
        try:
            while self._is_busy:
                arrived = self._wait()
                yield from self._handle_all(arrived)
                if self.chat_session.is_calling and any(
                    isinstance(event, EndOfTurn) for event in arrived
                ):
                    self._run_calls()
        finally:
            if self._is_busy:
                self.stop()

    def _wait(self) -> list[events.Event]:
        """Return the events that arrive within a moment; pass a stop on to the engine.

        Raises RuntimeError: the engine thread has ended.
        """
        if self._is_stop_requested:
            self._is_stop_requested = False
            self.engine_thread.cancel()
        self.engine_thread.wait_for_event(POLL_S)
        if self.engine_thread.has_events():
            time.sleep(max(0.0, LEAST_SAVED_APART_S - (time.monotonic() - self._saved_s)))
        # Counts of reading ahead are not needed here and may arrive at any time.
        arrived = [
            event
            for event in self.engine_thread.drain()
            if not isinstance(event, events.DraftCounted)
        ]
        self._on_status(self.engine_thread.status)
        if not self.engine_thread.is_alive and not arrived:
            raise RuntimeError("the engine's thread has ended")
        return arrived

    def _handle_all(self, arrived: list[events.Event]) -> list[events.Event]:
        """Apply events to the conversation, save it, and return the events to show."""
        to_show: list[events.Event] = []
        for event in arrived:
            to_show += self._handle(event)

        has_text = any(isinstance(event, TEXT_EVENTS) for event in arrived)
        if has_text or time.monotonic() - self._saved_s >= SAVE_PERIOD_S:
            self._saved_s = time.monotonic()
            self.chat_session.save_partial()
        if has_text and self.store is not None:
            # Text that is printed must survive a kill.
            self.chat_session.journal.wait_until_saved(WRITING_PATIENCE_S, waits_for_room=False)
        return to_show

    def _handle(self, event: events.Event) -> list[events.Event]:
        is_refused = isinstance(event, events.PromptRefused)
        to_show: list[events.Event] = []
        if self._has_joined_message and not is_refused:
            to_show.append(events.MessagesJoined())
        self._has_joined_message = False
        if is_refused and self.chat_session.send_without_joined():
            return [events.PendingMessageLeftOut()]

        if self._is_completing:
            self._is_completing = not isinstance(event, EndOfTurn)
        else:
            outcome = self.chat_session.handle(event)
            if outcome.shown_events is not None:
                return [*to_show, *outcome.shown_events]
            is_unsent = bool(outcome.returned_text)
            self.is_restored = self.is_restored or outcome.is_restored or is_unsent
            if outcome.is_repeated:
                event = events.EmptyReplyRepeated()
        if self._awaited is not None and isinstance(event, (self._awaited, events.ModelFailed)):
            self._awaited = None
        return [*to_show, event]

    def _run_calls(self) -> None:
        """Run the tool calls of the last reply that the user permits; a stop leaves all of them
        out."""
        calls = open_calls(self.chat_session.conversation)
        allowed = frozenset(call.call_id for call in calls if self._may_run_now(call))
        if self._is_stop_requested:
            self._is_stop_requested = False
            self.is_restored = self.chat_session.end_without_reply()
        else:
            self.chat_session.run_calls(allowed)

    def _may_run_now(self, call: ToolCall) -> bool:
        return not self._is_stop_requested and self._may_run(call)
