"""Threads and memory modes that the user tries: one rule for every screen and for ``/threads``."""

from __future__ import annotations

from dataclasses import replace

from app.backend.engine_thread import EngineThread
from app.conversations.conversation import ReplyFigures
from app.machine.tuning.promise import LEAST_TOKENS, TuningPromise, outcome_text
from app.machine.tuning.threads_in_use import (
    ChoiceOrigin,
    ThreadsInUse,
    choice_to_keep,
    is_in_use,
)
from app.program.state import TunedChoice
from app.session.chat_session import ChatSession
from app.session.events import ThreadsChanged


class HandTuning:
    """Changes of the choice in use. Each holds for this run until the user keeps it.

    The engine follows between two steps.

    Attributes:
        is_shown: whether a screen shows the changes, so that the chat need not say each of them.
        said: the last choice that such a screen has said in the chat; None if there is none.
    """

    def __init__(self, engine_thread: EngineThread, chat_session: ChatSession) -> None:
        self._engine_thread = engine_thread
        self._chat_session = chat_session
        self._model_path = ""
        """Path of the model to which the earlier choices apply."""
        self.is_shown = False
        self.said: ThreadsInUse | None = None
        self._earlier: list[ThreadsInUse] = []
        """Earlier choices, the newest last."""
        self._promise: TuningPromise | None = None

    @property
    def chosen(self) -> ThreadsInUse | None:
        """The choice that the engine uses or is about to use; None if no model is open."""
        in_use = self._engine_thread.state.threads
        if in_use is None:
            return None
        inbox = self._engine_thread.inbox
        chosen = inbox.pending_threads or in_use
        if kv_type := inbox.requested_kv_type:
            now = replace(chosen.now, kv_type=kv_type)
            return replace(chosen, now=now, origin=ChoiceOrigin.HAND)
        return chosen

    @property
    def previous(self) -> ThreadsInUse | None:
        """The choice before the last change of this model; None if nothing was changed."""
        if self._model_path != self._open_path or not self._earlier:
            return None
        return self._earlier[-1]

    @property
    def _open_path(self) -> str:
        model = self._chat_session.model
        if model is None:
            return ""
        return model.path

    @property
    def to_keep(self) -> TunedChoice | None:
        """The choice set by hand that is not saved; None if there is none."""
        chosen = self.chosen
        if chosen is None:
            return None
        return choice_to_keep(chosen)

    def need_not_say(self, event: ThreadsChanged) -> bool:
        """Return whether the chat may be silent about a change: it is said, or another followed."""
        if event.trouble:
            return False
        is_latest = event.in_use is self._engine_thread.state.threads
        return self.is_shown or event.in_use is self.said or not is_latest

    def try_choice(self, choice: TunedChoice, origin: ChoiceOrigin = ChoiceOrigin.HAND) -> bool:
        """Use a choice for this run; return False if it is in use already."""
        chosen = self.chosen
        return chosen is not None and self._request(chosen, choice, chosen.remembered, origin)

    def try_kv_type(self, kv_type: str) -> None:
        """Use another type of KV cache for this run, after the running reply."""
        chosen = self.chosen
        if chosen is not None and chosen.now.kv_type != kv_type:
            self._note_earlier(chosen)
            self._engine_thread.request_kv_type(kv_type)

    def use_and_save(self, choice: TunedChoice, to_save: TunedChoice) -> None:
        """Use a choice, and save one for the next start."""
        chosen = self.chosen
        if chosen is not None:
            self._request(chosen, choice, to_save, ChoiceOrigin.START)

    def keep(self) -> None:
        """Save the choice set by hand."""
        chosen = self.chosen
        to_keep = self.to_keep
        if chosen is not None and to_keep is not None:
            self.use_and_save(chosen.now, to_keep)

    def undo(self) -> None:
        """Restore the choice before the last change, both in use and saved."""
        previous = self.previous
        chosen = self.chosen
        if previous is not None and chosen is not None:
            self._earlier.pop()
            self._engine_thread.request_threads(previous)
            if previous.now.kv_type != chosen.now.kv_type:
                self._engine_thread.request_kv_type(previous.now.kv_type)

    def _request(
        self,
        chosen: ThreadsInUse,
        choice: TunedChoice,
        remembered: TunedChoice | None,
        origin: ChoiceOrigin,
    ) -> bool:
        # Only a key of its own changes the type of a cache in use: another type is saved.
        choice = replace(choice, kv_type=chosen.now.kv_type)
        if (choice, remembered) == (chosen.now, chosen.remembered):
            return False
        self._note_earlier(chosen)
        request = replace(chosen, now=choice, remembered=remembered, origin=origin)
        self._engine_thread.request_threads(request)
        return True

    def _note_earlier(self, chosen: ThreadsInUse) -> None:
        """Add a choice to those that ``undo`` restores; those of another model are forgotten."""
        if self._model_path != self._open_path:
            self._model_path = self._open_path
            self._earlier.clear()
        self._earlier.append(chosen)

    def expect(self, promise: TuningPromise | None) -> None:
        """Compare the next reply with the promise of a search; None compares nothing."""
        self._promise = promise

    def outcome_of(self, reply: ReplyFigures) -> str:
        """Return what came true of a promise in a reply, once.

        Empty if nothing was promised, the reply was too short, or the promised choice is no longer
        in use.
        """
        promise = self._promise
        in_use = self._engine_thread.state.threads
        tps = reply.decode_tps
        if promise is None or in_use is None or tps is None or reply.tokens < LEAST_TOKENS:
            return ""
        self._promise = None
        if not is_in_use(replace(promise.choice, kv_type=""), in_use.now):
            return ""
        return outcome_text(promise, tps)
