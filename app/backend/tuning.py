"""Tuning in the engine thread: searches, and threads that the user requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.backend.engine_link import EngineLink
from app.backend.local import engine_access
from app.backend.local.battery_run import BatteryRun
from app.backend.local.race import RaceRun
from app.backend.options import ChatOptions
from app.backend.protocol import ENERGY, RACE
from app.backend.status import Activity
from app.machine.sensors.reply_history import KnownAs
from app.machine.sensors.tuning_conditions import Conditions
from app.machine.tuning.battery_life import energy_counts
from app.machine.tuning.levels import leveled
from app.machine.tuning.past_runs import PastRun
from app.machine.tuning.race import race_counts
from app.machine.tuning.saved_tuning import (
    best_choice,
    certain_part,
    measured_of,
    measured_speeds,
    why_not_kept,
)
from app.machine.tuning.thread_bars import lookahead_lines
from app.machine.tuning.threads_in_use import ChoiceChange, ChoiceOrigin, ThreadsInUse
from app.program.settings import AUTO
from app.program.state import TunedChoice, TuningConditions
from app.session.events import ThreadsChanged, TuningEnded
from engine.errors import Cancelled, EngineError

if TYPE_CHECKING:
    from engine import Model, Session
    from engine.tuning.report import TuningReport

_MOST_CHANGES = 32
"""Limit on the changes that are kept for the performance screen."""


class EngineTuning:
    """Tuning of an open model.

    Args:
        on_weights_moved: called after the weights moved to another place in memory.

    Attributes:
        doubt: reason why the remembered choice may not suit this machine; empty if there is none.
    """

    def __init__(
        self,
        link: EngineLink,
        options: ChatOptions,
        model: Model,
        session: Session,
        on_weights_moved: Callable[[], None],
    ) -> None:
        self._link = link
        self._options = options
        self._model = model
        self._session = session
        self._on_weights_moved = on_weights_moved
        self._conditions = options.watch_conditions()
        saved = engine_access.recall_tuned(model)
        self.doubt = saved.doubt
        self._measured: dict[TunedChoice, TuningConditions] = {}
        """Conditions under which each choice was measured."""
        if saved.choice is not None and saved.measured is not None:
            self._measured[saved.choice] = saved.measured
        now = self._choice_in_use()
        self._threads = ThreadsInUse(
            now, saved.choice, model.most_threads, start_kv_type=now.kv_type
        )
        self._has_tuned_kernels = False
        link.update(threads=self._threads)
        self._runs = options.open_runs()
        self._key = engine_access.tuning_key(model)
        if (past := self._runs.load(self._key)) is not None:
            link.update(
                tuning=replace(past.report, elapsed_s=0.0),  # it took no time of this run
                tuning_conditions=past.conditions,
                tuning_unix_s=past.finished_unix_s,
            )
        link.apply_requested_threads = self._apply_requested_threads

    def _choice_in_use(self) -> TunedChoice:
        model = self._model
        kv_type = self._session.kv_type
        return TunedChoice(
            model.threads, model.prefill_threads, model.pinned, model.weights_mode, kv_type
        )

    def _apply_requested_threads(self) -> None:
        """Use the requested threads and memory mode, if there is a request."""
        inbox = self._link.inbox
        if not inbox.requested_threads:
            return
        # Set before the request leaves the queue: the screen always finds it in one of them.
        inbox.applying_threads = inbox.requested_threads[-1]
        inbox.applying_threads = inbox.requested_threads.pop()
        try:
            self._apply(inbox.applying_threads)
        finally:
            inbox.applying_threads = None

    def _apply(self, requested: ThreadsInUse) -> None:
        """Use threads and memory mode from the next step on. The KV cache keeps its type."""
        model = self._model
        previous = self._threads
        begin_s = self._link.now_s()
        limit = previous.most
        model.set_threads(min(requested.now.decode, limit), min(requested.now.prefill, limit))
        model.set_pinned(requested.now.pinned)
        trouble = self._move_weights(requested.now.weights)
        remembered = previous.remembered
        if requested.remembered != remembered and not trouble:
            trouble = self._remember(requested.remembered)
            if not trouble:
                remembered = requested.remembered
        self._threads = replace(
            previous, now=self._choice_in_use(), remembered=remembered, origin=requested.origin
        )
        self._report_change(previous, begin_s, trouble)

    def _report_change(self, previous: ThreadsInUse, begin_s: float, trouble: str) -> None:
        """Report the choice in use, and add what changed to the list of changes."""
        now = self._threads.now
        changes = self._link.state.changes
        if now != previous.now or trouble:
            change = ChoiceChange(begin_s, self._link.now_s(), previous.now, now, trouble)
            changes = (*changes, change)[-_MOST_CHANGES:]
        self._link.update(threads=self._threads, changes=changes)
        self._link.update_status(threads=self._model.threads)
        self._link.emit(ThreadsChanged(previous, self._threads, trouble))

    def use_session(
        self,
        session: Session,
        on_weights_moved: Callable[[], None],
        begin_s: float,
        trouble: str,
    ) -> None:
        """Follow a session with another type of KV cache.

        Args:
            begin_s: time at which the previous session was closed.
            trouble: reason why the type stays as it was; "" if it does not.
        """
        previous = self._threads
        self._session = session
        self._on_weights_moved = on_weights_moved
        origin = previous.origin if trouble else ChoiceOrigin.HAND
        self._threads = replace(previous, now=self._choice_in_use(), origin=origin)
        self._report_change(previous, begin_s, trouble)

    def _remember(self, choice: TunedChoice | None) -> str:
        """Remember a choice; return the reason if that fails."""
        state = self._link.state
        if choice is not None and choice not in self._measured and state.tuning is not None:
            kernels = engine_access.kernels_version()
            if measured := measured_of(state.tuning, choice, state.tuning_conditions, kernels):
                self._measured[choice] = measured
        conditions = None
        if choice is not None:
            conditions = self._measured.get(choice)
        trouble = engine_access.remember_tuned(self._model, choice, conditions)
        if trouble:
            return f"threads not remembered: {trouble}"
        if choice is not None:
            self._options.open_history().mark_tuned(self._known_as())
        return ""

    def _known_as(self) -> KnownAs:
        model = self._model
        return KnownAs(model.name, model.quantization, model.weights_bytes)

    def _move_weights(self, mode: str) -> str:
        """Move the weights to another kind of memory; return the reason if that fails."""
        if mode in ("", self._model.weights_mode):
            return ""
        status = self._link.status
        since_s = self._link.now_s()

        def show(progress: Any) -> None:
            if self._link.inbox.is_closing:
                raise Cancelled("closing")
            loading = replace(
                status,
                activity=Activity.LOADING,
                step="huge pages",
                done=progress.done,
                total=progress.total,
                since_s=since_s,
            )
            self._link.update(status=loading)

        try:
            self._model.use_weights(mode, show)
        except EngineError as error:
            return f"weights stay where they are: {error}"
        finally:
            self._link.update(status=status)
        self._on_weights_moved()
        return ""

    def tune(self, parts: tuple[str, ...]) -> None:
        """Search for the best settings after the conversation, which does not change."""
        link = self._link
        if parts == RACE:
            self._race()
            return
        if parts == ENERGY:
            self._measure_energy()
            return
        adds_to_earlier = "counts" not in parts
        earlier = link.state.tuning if adds_to_earlier else None
        may_pin = self._options.settings.pin_threads == AUTO
        sweep = engine_access.make_sweep(
            self._model, self._session, link.now_s, may_pin, parts, earlier=earlier
        )
        sweep.on_preparing = self._show_report
        sweep.others_cores = lambda: self._conditions.end().disturbing_cores
        self._conditions.begin()
        with link.running(sweep):
            link.update_status(activity=Activity.TUNING, done=0, total=0, since_s=link.now_s())
            for report in sweep:
                if report.is_over:
                    report = self._with_conditions(report, adds_to_earlier)
                self._show_report(report)
        link.emit(TuningEnded())

    def _race(self) -> None:
        """Write one sentence with each of several thread counts."""
        link = self._link
        counts = race_counts(self._model.most_threads, self._model.threads)
        run = RaceRun(self._model, self._session.kv_type, counts, link.now_s)
        with link.running(run):
            link.update_status(activity=Activity.TUNING, done=0, total=0, since_s=link.now_s())
            for race in run.run():
                link.update(race=race)
        link.emit(TuningEnded())

    def _measure_energy(self) -> None:
        """Measure the energy per token with several thread counts."""
        link = self._link
        model = self._model
        counts = energy_counts(model.most_threads, model.threads)
        meter = self._options.open_meter()
        run = BatteryRun(model, self._session, counts, meter, link.now_s)
        with link.running(run):
            link.update_status(activity=Activity.TUNING, done=0, total=0, since_s=link.now_s())
            self._conditions.begin()
            for energy in run.run():
                if energy.is_over:
                    others_cores = self._conditions.end().disturbing_cores
                    energy = replace(energy, others_cores=others_cores)
                link.update(energy=energy)
        link.emit(TuningEnded())

    def _with_conditions(self, report: TuningReport, adds_to_earlier: bool) -> TuningReport:
        """Return a finished report with remarks on the state of the machine, and save it."""
        report = leveled(report)
        conditions = self._conditions.end()
        lines: list[str] = []
        if adds_to_earlier:
            # The earlier report has the lines on kernels already.
            conditions = conditions.joined(self._link.state.tuning_conditions)
        finished_unix_s = time.time()
        self._link.update(tuning_conditions=conditions, tuning_unix_s=finished_unix_s)
        self._save_speeds(report, conditions)
        if not adds_to_earlier:
            lines = self._kernel_lines()
        notes = (*report.notes, *conditions.remarks())
        report = replace(report, notes=notes, reasons=(*report.reasons, *lines))
        self._runs.save(self._key, PastRun(report, conditions, finished_unix_s))
        return report

    def _save_speeds(self, report: TuningReport, conditions: Conditions) -> None:
        """Save the speeds of the best choice with those of replies, if they can be trusted."""
        now = self._threads.now
        if why_not_kept(report, now, conditions):
            return
        best = best_choice(certain_part(report, now), now)
        if (speeds := measured_speeds(report, best)) is not None:
            key = self._known_as().key(best.weights, best.decode)
            self._options.open_history().add(key, speeds)

    def tune_kernels(self) -> None:
        """Find the best memory prefetch of decode, once for a model, unless other work waits."""
        if self._has_tuned_kernels or self._link.has_other_work():
            return
        # If other work interrupts it, the next reply tries again.
        with suppress(EngineError, MemoryError):
            self._options.try_lookahead(
                self._model, self._session, self._link.has_other_work, False
            )
            self._has_tuned_kernels = True

    def _kernel_lines(self) -> list[str]:
        """Find the best memory prefetch of decode and return a line for each weight type.

        Takes a fifth of a second for each type; empty if it was stopped.
        """
        with suppress(EngineError, MemoryError):
            return lookahead_lines(
                self._options.try_lookahead(self._model, self._session, self._link.is_stopped, True)
            )
        return []

    def _show_report(self, report: TuningReport) -> None:
        self._link.update(tuning=leveled(report))
