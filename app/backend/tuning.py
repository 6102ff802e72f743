"""Tuning, in the engine's thread: searches, and wishes granted between two steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.backend.engine_state import Wire
from app.backend.local import opening as engine_access
from app.backend.options import ChatOptions
from app.backend.status import Activity
from app.machine.tuning.saved_tuning import measured_of
from app.machine.tuning.thread_bars import lookahead_lines
from app.machine.tuning.threads_in_use import ThreadsInUse
from app.program.settings import AUTO
from app.program.state import TunedChoice, TuningConditions
from app.session.events import ThreadsChanged, TuningEnded
from engine.errors import Cancelled, EngineError

if TYPE_CHECKING:
    from engine import Model, Session


class EngineTuning:
    """Tuning of an open model.

    ``on_weights_moved``: called when its weights lie elsewhere in memory.
    """

    def __init__(
        self,
        wire: Wire,
        options: ChatOptions,
        model: Model,
        session: Session,
        on_weights_moved: Callable[[], None],
    ) -> None:
        self._wire = wire
        self._options = options
        self._model = model
        self._session = session
        self._on_weights_moved = on_weights_moved
        self._conditions = options.watch_conditions()
        recalled = engine_access.recall_tuned(model)
        self.doubt = recalled.doubt
        """Why what is remembered may not hold here; "" for no reason."""
        self._measured: dict[TunedChoice, TuningConditions] = {}
        """Of every choice that was measured."""
        if recalled.choice is not None and recalled.measured is not None:
            self._measured[recalled.choice] = recalled.measured
        self._threads = wire.threads = ThreadsInUse(
            self._in_use(), recalled.choice, model.most_threads
        )
        self._has_tuned_kernels = False
        wire.apply_requested_threads = self._grant

    def _in_use(self) -> TunedChoice:
        model = self._model
        kv_type = self._session.kv_type
        return TunedChoice(
            model.threads, model.prefill_threads, model.pinned, model.weights_mode, kv_type
        )

    def _grant(self) -> None:
        """Use what was wished for, if anything was: from the next step on.

        A KV cache keeps its type.
        """
        if not self._wire.requested_threads:
            return
        wanted = self._wire.requested_threads.pop()
        model = self._model
        before = self._threads
        model.set_threads(min(wanted.now.decode, before.most), min(wanted.now.prefill, before.most))
        model.set_pinned(wanted.now.pinned)
        trouble = self._move_weights(wanted.now.weights)
        remembered = before.remembered
        if wanted.remembered != remembered and not trouble:
            trouble = self._remember(wanted.remembered)
            if not trouble:
                remembered = wanted.remembered
        self._threads = self._wire.threads = ThreadsInUse(self._in_use(), remembered, before.most)
        self._wire.update(threads=model.threads)
        self._wire.emit(ThreadsChanged(before, self._threads, trouble))

    def _remember(self, choice: TunedChoice | None) -> str:
        """Remember a choice; returns why not."""
        report = self._wire.tuning
        if choice is not None and choice not in self._measured and report is not None:
            kernels = engine_access.kernels_version()
            if measured := measured_of(report, choice, self._wire.tuning_conditions, kernels):
                self._measured[choice] = measured
        if choice is not None:
            found = self._measured.get(choice)
        else:
            found = None
        trouble = engine_access.remember_tuned(self._model, choice, found)
        if trouble:
            return f"threads not remembered: {trouble}"
        return ""

    def _move_weights(self, mode: str) -> str:
        """Have the weights in another place in memory; returns why not."""
        if mode in ("", self._model.weights_mode):
            return ""
        before = self._wire.status
        since_s = self._wire.now_s()

        def show(progress: Any) -> None:
            if self._wire.host.is_closing:
                raise Cancelled("closing")
            self._wire.status = replace(
                before, activity=Activity.LOADING, step="huge pages", done=progress.done,
                total=progress.total,
                since_s=since_s,
            )  # fmt: skip

        try:
            self._model.use_weights(mode, show)
        except EngineError as error:
            return f"weights stay where they are: {error}"
        finally:
            self._wire.status = before
        self._on_weights_moved()
        return ""

    def tune(self, parts: tuple[str, ...]) -> None:
        """Search for what is best after the conversation, which stays as it is."""
        model = self._model
        session = self._session
        wire = self._wire
        is_more = "counts" not in parts
        may_pin = self._options.settings.pin_threads == AUTO
        if is_more:
            earlier = wire.tuning
        else:
            earlier = None
        sweep = engine_access.make_sweep(
            model, session, wire.now_s, may_pin, parts, earlier=earlier
        )
        sweep.on_preparing = self._show_report
        sweep.others_cores = lambda: self._conditions.end().crowding_cores
        self._conditions.begin()
        with wire.running(sweep):
            wire.update(activity=Activity.TUNING, done=0, total=0, since_s=wire.now_s())
            for report in sweep:
                if report.is_over:
                    found = self._conditions.end()
                    found = wire.tuning_conditions = (
                        found.joined(wire.tuning_conditions) if is_more else found
                    )
                    # What was found before comes with its reasons.
                    if is_more:
                        lines = []
                    else:
                        lines = self._kernel_lines()
                    notes = (*report.notes, *found.remarks())
                    reasons = (*report.reasons, *lines)
                    report = replace(report, notes=notes, reasons=reasons)
                wire.tuning = report
        wire.emit(TuningEnded())

    def tune_kernels(self) -> None:
        """Find out how decode should ask memory ahead, once for a model, unless something is asked
        meanwhile."""
        if self._has_tuned_kernels or self._wire.is_wanted():
            return
        # given way to something better: after the next reply, then
        with suppress(EngineError, MemoryError):
            self._options.try_lookahead(self._model, self._session, self._wire.is_wanted, False)
            self._has_tuned_kernels = True

    def _kernel_lines(self) -> list[str]:
        """Measure how decode should ask memory ahead, a fifth of a second a weight type; returns a
        line for each."""
        with suppress(EngineError, MemoryError):  # stopped: the search for threads has its findings
            return lookahead_lines(
                self._options.try_lookahead(self._model, self._session, self._wire.is_stopped, True)
            )
        return []

    def _show_report(self, report: Any) -> None:
        self._wire.tuning = report
