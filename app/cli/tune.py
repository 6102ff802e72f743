"""``jalopy tune``: the best threads and memory modes for a model on this machine, measured, remembered. No Textual."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from app.chat import opening as engine_access
from app.chat.engine_thread import EngineThread
from app.chat.reply import Clock
from app.cli.bench import versions
from app.cli.progress_line import ProgressLine
from app.machine.tuning_conditions import Conditions, watch_machine
from app.program import exit_codes
from app.program.refusals import Refusal, say
from app.program.settings import AUTO, Settings
from app.program.state import TunedChoice
from app.text.clean_text import clean_line
from app.text.glyphs import choose_glyphs
from app.text.json_line import json_line
from app.text.record import record
from app.tuning.remembered import best_choice, choice_to_remember, measured_of
from app.tuning.thread_bars import TITLES, curve_lines, lookahead_lines, option_lines, pinning_line, progress_text

if TYPE_CHECKING:
    from engine.tuning.lookahead_trials import Lookahead
    from engine.tuning.report import TuningReport
    from engine.tuning.sweep import Sweep

_ROOM_TOKENS = 256
"""Behind the context, for what is measured."""
_MOST_COLUMNS = 78


@record
class TuneOptions:
    """Arguments of ``tune``, besides settings."""

    model: str
    budget_s: float | None = None
    """None for what suits the parts."""
    n_context: int = 64
    as_json: bool = False
    remember: bool = True
    try_weights: bool = False
    try_kv: bool = False
    only_kernels: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts to measure, as ``engine.tuning.report`` names them."""
        return ("counts", "pinning", *(("weights",) * self.try_weights), *(("kv",) * self.try_kv))


def tune(options: TuneOptions, settings: Settings, clock: Clock = time.monotonic) -> int:
    """Measure, print and remember; Ctrl-C stops it, and what was measured so far is printed.

    Raises:
        EngineError: the model cannot be used.
    """
    engine, progress = EngineThread(), ProgressLine()
    model = engine.run(lambda: engine_access.open_model(settings, options.model, progress.show_opening))
    search = _Search(model, options, settings, progress, clock)
    report = engine.run(search.run, on_interrupt=search.cancel)
    progress.clear()
    if options.only_kernels:
        return _tell_kernels(search, options)
    if report is None:
        raise Refusal("jalopy tune: stopped before anything was measured", exit_codes.INTERRUPTED)
    found = _Found(model, report, search.in_use, search.conditions, search.lookahead)
    trouble = _remember(engine, found, options)
    if options.as_json:
        print(json_line(_as_json(found, trouble is None)), flush=True)
    else:
        _print(found, trouble)
    return exit_codes.INTERRUPTED if report.state == "stopped" else exit_codes.OK


@record
class _Found:
    """Result of the search."""

    model: Any
    report: TuningReport
    in_use: TunedChoice
    conditions: Conditions
    lookahead: Mapping[str, Lookahead]

    @property
    def best(self) -> TunedChoice:
        """The best choice found."""
        return best_choice(self.report, self.in_use)


class _Search:
    """The search, in the engine's thread."""

    def __init__(
        self, model: Any, options: TuneOptions, settings: Settings, progress: ProgressLine, clock: Clock
    ) -> None:
        self._model, self._options, self._settings = model, options, settings
        self._progress, self._clock = progress, clock
        self._stopped = threading.Event()
        self._session: Any = None
        self._sweep: Sweep | None = None
        self._watch = watch_machine()
        self.conditions = Conditions()
        self.lookahead: Mapping[str, Lookahead] = {}
        self.in_use = TunedChoice(1, 1)
        """While it was measured."""

    @property
    def is_stopped(self) -> bool:
        """Whether it was cancelled."""
        return self._stopped.is_set()

    def cancel(self) -> None:
        """Stop; for another thread."""
        self._stopped.set()
        if self._sweep is not None:
            self._sweep.cancel()
        elif self._session is not None:
            self._session.cancel()

    def run(self) -> TuningReport | None:
        """Fill a context as a conversation would, and search; None if it was stopped before that."""
        model, n_context = self._model, max(1, min(self._options.n_context, self._longest - _ROOM_TOKENS))
        n_ctx: int | None = min(n_context + _ROOM_TOKENS, self._longest)
        if self._options.try_kv:  # types are compared in contexts as long as those of a chat
            n_ctx = self._settings.context_size or None
        self._session = model.session(n_ctx, engine_access.kv_type_of(self._settings, model))
        n_context = max(1, min(n_context, self._session.n_ctx - _ROOM_TOKENS))
        counts = model.threads, model.prefill_threads
        self.in_use = TunedChoice(*counts, model.pinned, model.weights_mode, self._session.kv_type)
        for line in self._model.notices:
            say(f"jalopy: {line}")
        try:
            if self._options.remember:
                self._tune_kernels()
            return None if self._options.only_kernels else self._search(n_context)
        except Exception as error:
            if getattr(error, "exit_code", None) == exit_codes.INTERRUPTED:
                return None
            raise
        finally:
            self._session.close()

    def _tune_kernels(self) -> None:
        self._progress.show("kernels: how to ask memory ahead")
        anew = self._options.only_kernels
        self.lookahead = engine_access.try_lookahead(self._model, self._session, self._stopped.is_set, anew)

    @property
    def _longest(self) -> int:
        return int(self._model.config.context_length)

    def _search(self, n_context: int) -> TuningReport | None:
        vocab_size = self._model.config.vocab_size
        context = [7919 * (i + 1) % vocab_size for i in range(n_context)]
        self._session.prefill(context, on_progress=lambda done, total: self._show_context(done, total))
        options, may_pin = self._options, self._settings.pin_threads == AUTO
        sweep = self._sweep = engine_access.make_sweep(
            self._model, self._session, self._clock, may_pin, options.parts, options.budget_s
        )
        if self._stopped.is_set():
            return None
        sweep.on_preparing = self._show
        sweep.others_cores = lambda: self._watch.end().crowding_cores
        self._watch.begin()
        report: TuningReport | None = None
        for report in sweep:
            if report.round_number == 0 and not report.is_over:
                self._show_estimates(report)
            self._show(report)
        self.conditions = self._watch.end()
        return report

    def _show(self, report: TuningReport) -> None:
        self._progress.show(progress_text(report))

    def _show_estimates(self, report: TuningReport) -> None:
        """Say beforehand what the comparisons take; not beside JSON that somebody reads by program."""
        for comparison in report.comparisons if not self._options.as_json else ():
            self._progress.clear()
            say(f"jalopy: {comparison.left_out or comparison.estimate}")

    def _show_context(self, done: int, total: int) -> None:
        if self._stopped.is_set():
            self._session.cancel()
        self._progress.show(f"filling a context of {total} tokens: {done}")


def _tell_kernels(search: _Search, options: TuneOptions) -> int:
    """Print what was found for the kernels alone. Raises Refusal: it was stopped before."""
    if search.is_stopped:
        raise Refusal("jalopy tune: stopped before everything was measured", exit_codes.INTERRUPTED)
    if not search.lookahead and not options.as_json:
        print("Nothing to choose: the model's weights are few enough for the processor's cache.")
    elif options.as_json:
        print(json_line({"engine": "jalopy", "kernels": {key: asdict(one) for key, one in search.lookahead.items()}}))
    else:
        print("\n".join(lookahead_lines(search.lookahead)), flush=True)
    return exit_codes.OK


def _remember(engine: EngineThread, found: _Found, options: TuneOptions) -> str | None:
    """Remember the best of a search that was not stopped; returns why not."""
    model, report, conditions = found.model, found.report, found.conditions
    if not options.remember:
        return "not remembered, as was asked"
    if report.state == "stopped" or not report.curves:
        return "not remembered, since it was not measured to the end"
    if conditions.is_swapping:
        return "not remembered, since the machine was swapping meanwhile"
    if conditions.is_crowded:
        return "not remembered, since other programs took a core meanwhile"

    def remember() -> str | None:
        remembered = engine_access.recall_tuned(model).choice
        choice = choice_to_remember(report, found.in_use, remembered)
        kernels = engine_access.kernels_version()
        measured = measured_of(report, choice, conditions, kernels)
        return engine_access.remember_tuned(model, choice, measured)

    return engine.run(remember)


def _as_json(found: _Found, is_remembered: bool) -> dict[str, Any]:
    model, now = found.model, found.in_use
    return {
        "engine": "jalopy",
        "model": model.name,
        "quantization": model.quantization,
        "weights": now.weights,
        "kv_type": now.kv_type,
        "best": asdict(found.best),
        "kernels": {quant: asdict(one) for quant, one in found.lookahead.items()},
        "remembered": is_remembered,
        **asdict(found.report),
        "conditions": asdict(found.conditions),
        "cpu": engine_access.cpu_level(),
        "versions": versions(),
    }


def _print(found: _Found, trouble: str | None) -> None:
    model, report, now = found.model, found.report, found.in_use
    glyphs = choose_glyphs(encoding=sys.stdout.encoding)
    columns = min(_MOST_COLUMNS, shutil.get_terminal_size((80, 24)).columns - 1)
    print(f"{clean_line(model.name, 60)} · {clean_line(model.quantization, 12)} · context {report.n_context} tokens")
    for text in lookahead_lines(found.lookahead):
        print(text)
    for curve in report.curves:
        print(f"\n{TITLES[curve.phase]} (samples of {curve.n_tokens} tokens)")
        in_use = now.decode if curve.phase == "decode" else now.prefill
        for line in curve_lines(curve, in_use, columns, glyphs):
            print(line.text)
    for comparison in report.comparisons:
        print()
        for line in option_lines(comparison, comparison.present, glyphs):
            print(line.text)
    print()
    outcomes = [comparison.reason for comparison in report.comparisons]
    remarks = found.conditions.remarks()
    for text in (
        *report.reasons,
        pinning_line(report),
        *outcomes,
        *report.notes,
        *remarks,
        f"{progress_text(report)}.",
    ):
        if text:
            print(text[:1].upper() + text[1:])
    if report.curves:
        options = _options_of(found.best, now)
        print(f"{trouble} ({options} uses them)" if trouble else f"Remembered: {options} from the next start on.")


def _options_of(best: TunedChoice, now: TunedChoice) -> str:
    """The choice as options of the command line; those of memory only where they change."""
    options = f"--threads {best.decode} --prefill-threads {best.prefill}"
    if best.weights != now.weights:
        options += f" --weights {best.weights}"
    return options + (f" --kv {best.kv_type}" if best.kv_type != now.kv_type else "")
