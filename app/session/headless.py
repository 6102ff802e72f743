"""A conversation with a model, for those without a screen: plain events, until the engine is free
again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import takewhile

from app.backend.engine_thread import EngineThread
from app.backend.options import ChatOptions
from app.backend.reply_text import TextEvent
from app.backend.status import EngineStatus
from app.conversations.journal import ConversationStorage
from app.conversations.store import LoadedConversation
from app.machine.tuning.threads_in_use import ThreadsInUse
from app.program.remote_model import ModelPlace
from app.session import events
from app.session.chat_session import Admission, ChatSession
from app.session.request import Request
from app.tools.toolbox import MOST_ROUNDS, TOO_MANY_ROUNDS
from engine.prompt.tools.calls import ToolCall

EndOfTurn = (
    events.GenerationFinished
    | events.GenerationFailed
    | events.PromptStopped
    | events.PromptRefused
)

SHOWN = TextEvent | events.PieceGenerated
"""Events whose text is shown."""
LOOK_S = 0.1
"""A stop is seen, and progress looked at, this often."""
SAVE_PERIOD_S = 1.5
LEAST_SAVED_APART_S = 0.05
"""What comes within this time is stored, and then shown, together."""
WRITING_PATIENCE_S = 2.0
"""Limit on the wait for a disk that does not answer; then text is shown that a kill would lose."""
SAVING_PATIENCE_S = 10.0
HURRIED_PATIENCE_S = 1.0
"""Limit where a signal ends the program, whose exit code must come within two seconds."""


class NothingToDoError(Exception):
    """The request is not possible now; the message says why."""


class HeadlessChat:
    """One conversation with one model at a time.

    Iterate over what a method returns, in one thread at a time, to its end or until it is dropped:
    a reply that no one follows is stopped. ``stop`` may be called from any thread, and from a
    signal's handler.

    Args:
        at_hand: the saved conversations; by default nothing is saved.
        watch: called while the engine works, with what it is doing.
        may_read_ahead: whether to use the engine while nothing was asked; consulted each time.
        may_run: asks whether a tool may run; called in the thread that iterates, between two
            events.
    """

    def __init__(
        self,
        options: ChatOptions,
        storage: ConversationStorage | None = None,
        system: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        watch: Callable[[EngineStatus], object] = lambda status: None,
        may_read_ahead: Callable[[], bool] = bool,
        may_run: Callable[[ToolCall], bool] = lambda call: False,
    ) -> None:
        self._at_hand = storage or ConversationStorage()
        self._watch = watch
        self._may_read_ahead = may_read_ahead
        self._may_run = may_run
        self._has_calls = False
        """And whether the last reply has calls about which no one was asked yet."""
        self.engine_thread = EngineThread(options, clock)
        self.chat_session = ChatSession(
            self.engine_thread, system, self._at_hand.journal, SAVING_PATIENCE_S
        )
        self.store = self._at_hand.store
        """The saved conversations; None where nothing is saved."""
        self.is_restored = False
        """Whether the last turn left the conversation as it was, with all that it would have
        replaced."""
        self._came: deque[events.Event] = deque()
        self._awaited: type[events.Event] | None = None
        """An event that must come before the engine is free, other than those that ``ChatSession`` waits
        for."""
        self._is_completing = self._is_stop_wanted = False
        self._is_joining = False
        """Whether the running turn's message goes with an unanswered one, and it is not known yet
        that both fit."""
        self._saved_s = 0.0
        self._n_stored = 0
        """The first events of those that came which are taken in and stored already."""
        self.engine_thread.start()

    # ---- models and conversations

    def open(
        self, path: ModelPlace, opened: LoadedConversation | None = None
    ) -> Iterator[events.Event]:
        """Open the first model, with a saved conversation or a new one."""
        if opened is not None:
            self.chat_session.open_saved(opened)
        return self._load(path, is_kept=opened is not None, rereads=False)

    def switch_model(self, path: ModelPlace) -> Iterator[events.Event]:
        """Open another model and go on with the conversation, which it reads first."""
        self._settle()
        return self._load(path, is_kept=True, rereads=True)

    def _load(self, path: ModelPlace, is_kept: bool, rereads: bool) -> Iterator[events.Event]:
        self.chat_session.load(path, is_kept, rereads)
        is_taken_up = is_kept and not rereads and self.chat_session.has_context
        if is_taken_up:
            self._awaited = events.ConversationTakenUp
        else:
            self._awaited = None
        return self._follow()

    def begin(self, system: str | None) -> Iterator[events.Event]:
        """Begin a new conversation."""
        self._settle()
        self.chat_session.start_new(system)
        return self._follow()

    # ---- turns

    def ask(self, text: str) -> Iterator[events.Event]:
        """Answer a message."""
        self._settle()
        return self._answer(self.chat_session.submit(text) is Admission.SENT, "no model is loaded")

    def regenerate(self) -> Iterator[events.Event]:
        """Answer the last message again, or at last."""
        self._settle()
        return self._answer(self.chat_session.regenerate(), "there is no answer to give again")

    def continue_reply(self) -> Iterator[events.Event]:
        """Go on with the last reply where it ended before its end."""
        self._settle()
        return self._answer(
            self.chat_session.continue_reply(), "there is no unfinished answer at the end"
        )

    def edit(self, n_turn: int, text: str) -> Iterator[events.Event]:
        """Ask in place of an earlier message and all after it; ``n_turn`` counts from 0."""
        self._settle()
        return self._answer(self.chat_session.submit_edit(text, n_turn), "no model is loaded")

    def edit_reply(self, n_turn: int, text: str) -> Iterator[events.Event]:
        """Go on with a reply from another text, in place of it and all after it."""
        self._settle()
        return self._answer(
            self.chat_session.submit_edited_reply(text, n_turn), "no model is loaded"
        )

    def complete(self, text: str) -> Iterator[events.Event]:
        """Continue a plain text, outside of any conversation."""
        self._settle()
        request = Request(plain=text, adapters=self.chat_session.conversation.adapters)
        self._is_completing = self.engine_thread.reply(request)
        return self._answer(self._is_completing, "the engine has too much to do")

    def request_threads(self, wanted: ThreadsInUse) -> Iterator[events.Event]:
        """Use other threads."""
        self._settle()
        self._awaited = events.ThreadsChanged
        self.engine_thread.request_threads(wanted)
        return self._follow()

    def use_adapters(self, adapters: tuple[str, ...]) -> Iterator[events.Event]:
        """Change the model by these adapters."""
        self._settle()
        return self._answer(self.chat_session.use_adapters(adapters), "no model is loaded")

    def read(self, text: str, folded: str, title: str) -> Iterator[events.Event]:
        """Read what the next message begins with, as a conversation that has nothing else, and keep
        the state.

        The conversation is saved with it: the one who goes on with it asks, and both are sent
        together.
        """
        self._settle()
        is_begun = self.chat_session.read(text, folded, title)
        return self._answer(is_begun, "the engine has too much to do")

    def read_ahead(self, text: str) -> None:
        """Let the engine read the documents that the next message begins with, until anything is
        asked."""
        if self._may_read_ahead():
            self.chat_session.read_ahead(text.strip(), is_read=True, is_settled=True)

    def stop(self) -> None:
        """Stop what runs; the text of a reply so far stays."""
        self._is_stop_wanted = (
            True  # no lock is taken: a signal may come while this thread holds it
        )

    def close(self, is_hurried: bool = False) -> str:
        """Save everything and end the engine's thread, for which no one waits in a hurry; returns
        why saving failed."""
        if is_hurried:
            patience_s = HURRIED_PATIENCE_S
        else:
            patience_s = SAVING_PATIENCE_S
        with suppress(Exception):
            self.chat_session.save_partial()
        if is_hurried:
            self.engine_thread.close(0.0)
        else:
            self._settle()
            self.engine_thread.close(patience_s, patience_s)
        trouble = self.chat_session.journal.close(patience_s)
        if not is_hurried:
            self._at_hand.tidy()
        return trouble

    # ---- events

    @property
    def _is_busy(self) -> bool:
        return self.chat_session.is_busy or self._is_completing or self._awaited is not None

    def _answer(self, is_begun: bool, otherwise: str) -> Iterator[events.Event]:
        if not is_begun:
            raise NothingToDoError(otherwise)
        self.is_restored = False
        self._is_joining = self.chat_session.joined_message is not None
        return self._follow()

    def _settle(self) -> None:
        """Let what was dropped come to its end; a stop of it means nothing to what comes next."""
        if self._is_busy:
            self.stop()
            for _ in self._follow():
                pass
        self._is_stop_wanted = False

    def _follow(self) -> Iterator[events.Event]:
        """Yield what happens until the engine is free."""
        try:
            while self._came or self._is_busy:
                if not self._came:
                    if self._has_calls:
                        self._ask_about_calls()
                    else:
                        self._look()
                    continue
                is_refused = isinstance(self._came[0], events.PromptRefused)
                is_joining = self._is_joining
                self._is_joining = False
                if is_joining and not is_refused:
                    # what has come is taken in afterwards, even if no one goes on
                    yield events.MessagesJoined()
                event = self._came.popleft()
                if is_refused and self.chat_session.send_without_joined():
                    event = events.PendingMessageLeftOut()
                elif self._n_stored:
                    self._n_stored -= 1
                else:
                    self._take_in(event)
                    if isinstance(event, SHOWN) and self.store is not None:
                        self._store_text()
                yield event
        finally:
            if self._is_busy:
                self.stop()

    def _ask_about_calls(self) -> None:
        """Have those calls of the last reply run that may; one that stops leaves all of them."""
        self._has_calls = False
        reply = self.chat_session.last_message
        assert reply is not None
        is_enough = self.chat_session.conversation.n_rounds >= MOST_ROUNDS
        allowed: frozenset[str] = frozenset()
        if not is_enough:
            allowed = frozenset(it.call_id for it in reply.calls if self._may_run_now(it))
        if is_enough or self._is_stop_wanted:
            self._is_stop_wanted = False
            self.is_restored = self.chat_session.end_without_reply()
            if is_enough:
                self._came += [events.ToolsTold(TOO_MANY_ROUNDS)]
            else:
                self._came += []
        else:
            self.chat_session.run_calls(allowed)

    def _may_run_now(self, call: ToolCall) -> bool:
        return not self._is_stop_wanted and self._may_run(call)

    @property
    def is_stopping(self) -> bool:
        """Whether a stop is wanted and was not seen yet."""
        return self._is_stop_wanted

    def _look(self) -> None:
        if self._is_stop_wanted:
            self._is_stop_wanted = False
            self.engine_thread.cancel()
        self.engine_thread.wait_for_event(LOOK_S)
        self._drain()
        self._watch(self.engine_thread.status)
        if not self.engine_thread.is_alive and not self._came:
            raise RuntimeError("the engine's thread has ended")
        now_s = time.monotonic()
        if now_s - self._saved_s >= SAVE_PERIOD_S:
            self._saved_s = now_s
            self.chat_session.save_partial()

    def _drain(self) -> None:
        # Counts of reading ahead are not needed here, and may arrive at any time.
        self._came += [
            event
            for event in self.engine_thread.drain()
            if not isinstance(event, events.PromptCounted)
        ]

    def _store_text(self) -> None:
        """Store the reply as far as it came, so that nothing is shown which a kill would lose."""
        if (early_s := LEAST_SAVED_APART_S - (time.monotonic() - self._saved_s)) > 0:
            time.sleep(early_s)
            self._drain()
        for event in takewhile(lambda event: isinstance(event, SHOWN), self._came):
            self._take_in(event)
            self._n_stored += 1
        self._saved_s = time.monotonic()
        self.chat_session.save_partial()
        self.chat_session.journal.wait_until_saved(WRITING_PATIENCE_S, waits_for_room=False)

    def _take_in(self, event: events.Event) -> None:
        """Keep the conversation true to what has happened; what an event shows is saved."""
        if self._is_completing:
            self._is_completing = not isinstance(event, EndOfTurn)
        else:
            self.is_restored = self.chat_session.handle(event).is_restored or self.is_restored
            self._has_calls = self._has_calls or (
                self.chat_session.is_calling and isinstance(event, EndOfTurn)
            )
        if isinstance(event, (self._awaited or (), events.ModelFailed)):
            self._awaited = None
