"""Threads, in the engine's thread: sweeps over their counts, and wishes for others granted between two steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from app import engine_access
from app.bridge import ChatOptions, Tune, Wire
from app.engine_status import Activity
from app.messages import ThreadsChanged, TuningEnded
from app.state import ThreadChoice
from app.threads_in_use import ThreadsInUse

if TYPE_CHECKING:
    from engine import Model, Session


class EngineTuning:
    """What the engine's thread knows of threads."""

    def __init__(self, wire: Wire, options: ChatOptions) -> None:
        self._wire, self._options = wire, options
        self._model: Model | None = None
        wire.threads.grant = self.grant

    def note_opened(self, model: Model) -> None:
        """A model is there, with the threads it begins with."""
        self._model = model
        remembered = self._options.recall_threads(model) if self._options.recall_threads is not None else None
        self._wire.threads.in_use = ThreadsInUse(_choice_of(model), remembered, model.most_threads)

    def note_closed(self) -> None:
        """There is no model any more."""
        self._model = self._wire.threads.in_use = self._wire.tuning = None

    def grant(self) -> None:
        """Use the threads wished for, if any are: from the next step on."""
        wanted = self._wire.threads.take()
        model, before = self._model, self._wire.threads.in_use
        if wanted is None or model is None or before is None:
            return
        model.set_threads(min(wanted.now.decode, before.most), min(wanted.now.prefill, before.most))
        model.set_pinned(wanted.now.pinned)
        trouble = None
        if wanted.remembered != before.remembered and self._options.remember_threads is not None:
            trouble = self._options.remember_threads(model, wanted.remembered)
        remembered = before.remembered if trouble else wanted.remembered
        in_use = ThreadsInUse(_choice_of(model), remembered, before.most)
        self._wire.threads.in_use = in_use
        self._wire.status = replace(self._wire.status, threads=model.threads)
        self._wire.emit(ThreadsChanged(before, in_use, trouble or ""))

    def tune(self, command: Tune, session: Session) -> None:
        """Search for the best threads behind the conversation, which stays as it is."""
        model, wire = self._model, self._wire
        assert model is not None
        wire.sweep = sweep = engine_access.make_sweep(
            model, session, command.budget_s, wire.clock, self._options.may_pin
        )
        try:
            if wire.cancelled.is_set():  # asked for in the moment before the sweep could be seen
                sweep.cancel()
            wire.status = replace(wire.status, activity=Activity.TUNING, done=0, total=0, since_s=wire.clock())
            for report in sweep:
                wire.tuning = report
        finally:
            wire.sweep = None
        wire.emit(TuningEnded())


def _choice_of(model: Model) -> ThreadChoice:
    return ThreadChoice(model.threads, model.prefill_threads, model.pinned)
