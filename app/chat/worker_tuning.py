"""Tuning, in the engine's thread: searches, and wishes granted between two steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.chat import opening as engine_access
from app.chat.commands import Tune
from app.chat.events import ThreadsChanged, TuningDoubted, TuningEnded
from app.chat.options import ChatOptions
from app.chat.status import Activity
from app.chat.wire import Wire
from app.machine.tuning_conditions import Conditions
from app.program.settings import AUTO
from app.program.state import Measured, TunedChoice
from app.tuning.remembered import Recalled, kv_type_of, measured_of
from app.tuning.thread_bars import lookahead_lines
from app.tuning.threads_in_use import ThreadsInUse
from engine.errors import Cancelled, EngineError

if TYPE_CHECKING:
    from engine import Model, Session


class EngineTuning:
    """Tuning of the model that is open. ``on_weights_moved``: called when its weights lie elsewhere in memory."""

    def __init__(self, wire: Wire, options: ChatOptions, on_weights_moved: Callable[[Model], None]) -> None:
        self._wire, self._options, self._on_weights_moved = wire, options, on_weights_moved
        self._conditions = options.watch_conditions()
        self._model: Model | None = None
        self._session: Session | None = None
        self._recalled = Recalled()
        self._measured: dict[TunedChoice, Measured] = {}
        """Of every choice of this session that was measured."""
        self._has_doubted = False
        wire.grant_wish = self.grant

    def note_model(self, model: Model) -> str:
        """A model is there, with the threads it begins with; returns the type of its KV cache."""
        self._model, self._recalled = model, engine_access.recall_tuned(model)
        return kv_type_of(self._options.settings.kv_type, self._recalled.choice)

    def note_opened(self, session: Session) -> None:
        """The model's session is there too."""
        model, recalled = self._model, self._recalled
        assert model is not None
        self._session = session
        self._measured.clear()
        if recalled.choice is not None and recalled.measured is not None:
            self._measured[recalled.choice] = recalled.measured
        self._wire.threads = ThreadsInUse(self._in_use(model), recalled.choice, model.most_threads)

    def note_closed(self) -> None:
        """Forget the model, which is no longer loaded."""
        self._model = self._session = None
        self._wire.threads = self._wire.tuning = None
        self._wire.tuning_conditions = Conditions()

    def _in_use(self, model: Model) -> TunedChoice:
        kv_type = self._session.kv_type if self._session is not None else ""
        return TunedChoice(model.threads, model.prefill_threads, model.pinned, model.weights_mode, kv_type)

    def grant(self) -> None:
        """Use what was wished for, if anything was: from the next step on. A KV cache keeps its type."""
        wanted = self._wire.wishes.pop() if self._wire.wishes else None
        model, before = self._model, self._wire.threads
        if wanted is None or model is None or before is None:
            return
        model.set_threads(min(wanted.now.decode, before.most), min(wanted.now.prefill, before.most))
        model.set_pinned(wanted.now.pinned)
        troubles = [self._move_weights(model, wanted.now.weights)]
        remembered = before.remembered
        if wanted.remembered != before.remembered and not troubles[0]:
            troubles.append(self._remember(model, wanted.remembered))
            remembered = before.remembered if troubles[1] else wanted.remembered
        in_use = ThreadsInUse(self._in_use(model), remembered, before.most)
        self._wire.threads = in_use
        self._wire.update(threads=model.threads)
        self._wire.emit(ThreadsChanged(before, in_use, next(filter(None, troubles), "")))

    def _remember(self, model: Model, choice: TunedChoice | None) -> str:
        """Remember a choice; returns why not."""
        report = self._wire.tuning
        if choice is not None and choice not in self._measured and report is not None:
            kernels = engine_access.kernels_version()
            if measured := measured_of(report, choice, self._wire.tuning_conditions, kernels):
                self._measured[choice] = measured
        found = self._measured.get(choice) if choice is not None else None
        trouble = engine_access.remember_tuned(model, choice, found)
        return f"threads not remembered: {trouble}" if trouble else ""

    def _move_weights(self, model: Model, mode: str) -> str:
        """Have the weights in another place in memory; returns why not."""
        if mode in ("", model.weights_mode):
            return ""
        before, since_s = self._wire.status, self._wire.now_s()

        def show(progress: Any) -> None:
            if self._wire.closing.is_set():
                raise Cancelled("closing")
            self._wire.status = replace(
                before, activity=Activity.LOADING, step="huge pages", done=progress.done, total=progress.total,
                since_s=since_s,
            )  # fmt: skip

        try:
            model.use_weights(mode, show)
        except EngineError as error:
            return f"weights stay where they are: {error}"
        finally:
            self._wire.status = before
        self._on_weights_moved(model)
        return ""

    def tune(self, command: Tune, session: Session) -> None:
        """Search for what is best behind the conversation, which stays as it is."""
        model, wire = self._model, self._wire
        assert model is not None
        is_more = "counts" not in command.parts
        may_pin, earlier = self._options.settings.pin_threads == AUTO, wire.tuning if is_more else None
        sweep = engine_access.make_sweep(model, session, wire.now_s, may_pin, command.parts, earlier=earlier)
        sweep.on_preparing = self._show_report
        sweep.others_cores = lambda: self._conditions.end().crowding_cores
        self._conditions.begin()
        with wire.running(sweep):
            wire.update(activity=Activity.TUNING, done=0, total=0, since_s=wire.now_s())
            for report in sweep:
                if report.is_over:
                    found = self._conditions.end()
                    found = wire.tuning_conditions = found.joined(wire.tuning_conditions) if is_more else found
                    # What was found before comes with its reasons.
                    lines = [] if is_more else self._kernel_lines(model, session)
                    notes, reasons = (*report.notes, *found.remarks()), (*report.reasons, *lines)
                    report = replace(report, notes=notes, reasons=reasons)
                wire.tuning = report
        wire.emit(TuningEnded())

    def _kernel_lines(self, model: Model, session: Session) -> list[str]:
        """Measure how decode should ask memory ahead, a fifth of a second a weight type; returns a line for each."""
        try:
            return lookahead_lines(self._options.try_lookahead(model, session, self._wire.is_stopped, True))
        except (EngineError, MemoryError):  # stopped: the search for threads has its findings
            return []

    def _show_report(self, report: Any) -> None:
        self._wire.tuning = report

    def doubt_what_is_remembered(self) -> None:
        """Say once in a session why the model's choice may not hold here, if there is a reason."""
        if self._recalled.doubt and not self._has_doubted:
            self._has_doubted = True
            self._wire.emit(TuningDoubted(self._recalled.doubt))
