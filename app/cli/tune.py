"""``jalopy tune``: measure the best threads and memory settings for a model, and save them."""

from __future__ import annotations

import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from app.backend.local import engine_access
from app.backend.reply import Clock
from app.backend.work_thread import WorkThread, start_work_thread
from app.cli.battery import show_battery
from app.cli.bench import versions
from app.cli.output import ProgressLine
from app.cli.race import show_race
from app.machine.sensors.reply_history import KnownAs, ReplyHistory
from app.machine.sensors.tuning_conditions import Conditions, look_at_load, watch_machine
from app.machine.tuning.findings import detail_texts, findings_of, headline, why_texts
from app.machine.tuning.levels import leveled
from app.machine.tuning.past_runs import PastRun, PastRuns
from app.machine.tuning.quiet import QuietWatch, busy_text
from app.machine.tuning.saved_tuning import (
    best_choice,
    certain_part,
    choice_to_remember,
    measured_of,
    measured_speeds,
    why_not_kept,
)
from app.machine.tuning.thread_bars import chart_lines, lookahead_lines, progress_text
from app.models.library.speed import writing_text
from app.program import exit_codes, paths
from app.program.refusals import Refusal, say
from app.program.settings import AUTO, Settings
from app.program.state import TunedChoice
from app.text.clean_text import clean_line
from app.text.figures import counted
from app.text.glyphs import choose_glyphs
from app.text.json_line import json_line
from app.text.record import record

if TYPE_CHECKING:
    from engine.tuning.lookahead_trials import Lookahead
    from engine.tuning.report import TuningReport
    from engine.tuning.sweep import Sweep

_MEASURED_TOKENS = 256
"""Tokens of the context that are free for the measurement."""
_MAX_COLUMNS = 78
_LOOK_S = 1.0
"""Seconds for which the load of other programs is read."""


@record
class TuneOptions:
    """Arguments of ``tune`` that are not settings."""

    model: str
    budget_s: float | None = None
    """Time limit in seconds; None for the default of the selected measurements."""
    n_context: int = 64
    as_json: bool = False
    remember: bool = True
    try_weights: bool = False
    try_kv: bool = False
    only_kernels: bool = False
    anyway: bool = False
    """Whether to measure although other programs are busy, instead of waiting in a terminal."""
    show: bool = False
    """Whether to show a race of thread counts instead."""
    battery: bool = False
    """Whether to measure the energy per token instead."""


def tune(options: TuneOptions, settings: Settings, clock: Clock = time.monotonic) -> int:
    """Measure, print and save the best settings; Ctrl-C prints the results so far.

    Raises:
        EngineError: the model cannot be used.
        Refusal: the measurement was stopped before the first result.
    """
    engine = start_work_thread()
    progress = ProgressLine()
    model = engine.run(
        lambda: engine_access.open_model(settings, options.model, progress.show_opening)
    )
    search = _Search(model, options, settings, progress, clock)
    if options.show:
        return show_race(engine, model, settings, progress, clock)
    if options.battery:
        return show_battery(engine, model, settings, progress, clock)
    if not options.anyway and not options.only_kernels and sys.stderr.isatty():
        _wait_until_quiet(progress, clock)
    report = engine.run(search.run, on_interrupt=search.cancel)
    progress.clear()
    if options.only_kernels:
        return _print_prefetch(search)
    if report is None:
        raise Refusal("jalopy tune: stopped before the first result", exit_codes.INTERRUPTED)
    reason = _remember(engine, search, report)
    if options.as_json:
        print(json_line(_as_json(search, report, reason is None)), flush=True)
    else:
        _print(search, report, reason)
    if report.state == "stopped":
        return exit_codes.INTERRUPTED
    return exit_codes.OK


def _wait_until_quiet(progress: ProgressLine, clock: Clock) -> None:
    """Wait until other programs are quiet, and say so; Ctrl-C ends the command."""
    quiet = QuietWatch()
    n_cores = engine_access.most_threads()
    while True:
        quiet.add(look_at_load(_LOOK_S).others_cores, clock())
        if quiet.is_quiet(clock()):
            progress.clear()
            return
        others = busy_text(quiet.others_cores, n_cores)
        progress.show(f"{others}: waiting for quiet (--anyway begins now)")


class _Search:
    """Search for the best settings, in the engine thread.

    Attributes:
        stopped: set when the user stops the search.
        lookahead: the best memory prefetch by weight type; empty if it was not measured.
        conditions: load of the machine during the search.
    """

    def __init__(
        self,
        model: Any,
        options: TuneOptions,
        settings: Settings,
        progress: ProgressLine,
        clock: Clock,
    ) -> None:
        self.model = model
        self.options = options
        self._settings = settings
        self._progress = progress
        self._clock = clock
        self.stopped = threading.Event()
        self._session: Any = None
        self._sweep: Sweep | None = None
        self._watch = watch_machine()
        self.conditions = Conditions()
        self.lookahead: Mapping[str, Lookahead] = {}
        self.in_use = TunedChoice(1, 1)
        """Settings in use during the search."""

    def cancel(self) -> None:
        """Stop the search, from another thread."""
        self.stopped.set()
        if self._sweep is not None:
            self._sweep.cancel()
        elif self._session is not None:
            self._session.cancel()

    def run(self) -> TuningReport | None:
        """Fill a context, search, and return the report; None if there is no result."""
        model = self.model
        options = self.options
        max_context = int(model.config.context_length)
        n_context = max(1, min(options.n_context, max_context - _MEASURED_TOKENS))
        n_ctx: int | None = min(n_context + _MEASURED_TOKENS, max_context)
        if options.try_kv:  # KV types are compared in a context as long as a chat's
            n_ctx = self._settings.context_size or None
        self._session = model.session(n_ctx, engine_access.kv_type_of(self._settings, model))
        n_context = max(1, min(n_context, self._session.n_ctx - _MEASURED_TOKENS))
        counts = model.threads, model.prefill_threads
        self.in_use = TunedChoice(*counts, model.pinned, model.weights_mode, self._session.kv_type)
        for line in model.notices:
            say(f"jalopy: {line}")
        try:
            if options.remember:
                self._progress.show("tuning memory prefetch")
                is_stopped = self.stopped.is_set
                again = options.only_kernels
                self.lookahead = engine_access.try_lookahead(
                    model, self._session, is_stopped, again
                )
            if options.only_kernels:
                return None
            return self._search(n_context)
        except Exception as error:
            if getattr(error, "exit_code", None) == exit_codes.INTERRUPTED:
                return None
            raise
        finally:
            self._session.close()

    def _search(self, n_context: int) -> TuningReport | None:
        model = self.model
        options = self.options
        may_pin = self._settings.pin_threads == AUTO
        context = [7919 * (i + 1) % model.config.vocab_size for i in range(n_context)]
        self._session.prefill(context, on_progress=self._show_context)
        measurements = ["counts", "pinning"]
        if options.try_weights:
            measurements.append("weights")
        if options.try_kv:
            measurements.append("kv")
        sweep = self._sweep = engine_access.make_sweep(
            model, self._session, self._clock, may_pin, tuple(measurements), options.budget_s
        )
        if self.stopped.is_set():
            return None
        sweep.on_preparing = self._show
        sweep.others_cores = lambda: self._watch.end().disturbing_cores
        self._watch.begin()
        report: TuningReport | None = None
        for report in sweep:
            if report.round_number == 0 and not report.is_over:
                self._show_estimates(report)
            self._show(report)
        self.conditions = self._watch.end()
        return leveled(report) if report is not None else None

    def _show(self, report: TuningReport) -> None:
        self._progress.show(progress_text(report))

    def _show_estimates(self, report: TuningReport) -> None:
        """Print how long the comparisons will take, unless the output is JSON."""
        if self.options.as_json:
            return
        for comparison in report.comparisons:
            self._progress.clear()
            say(f"jalopy: {comparison.left_out or comparison.estimate}")

    def _show_context(self, done: int, total: int) -> None:
        if self.stopped.is_set():
            self._session.cancel()
        self._progress.show(f"filling a context of {total} tokens: {done}")


def _print_prefetch(search: _Search) -> int:
    """Print the result of ``--kernels``. Raises Refusal: the search was stopped."""
    if search.stopped.is_set():
        raise Refusal(
            "jalopy tune: stopped before the end of the measurement", exit_codes.INTERRUPTED
        )
    if not search.lookahead and not search.options.as_json:
        print("Nothing to tune: the model's weights fit the processor's cache.")
    elif search.options.as_json:
        print(
            json_line(
                {
                    "engine": "jalopy",
                    "kernels": {
                        quant: asdict(lookahead) for quant, lookahead in search.lookahead.items()
                    },
                }
            )
        )
    else:
        print("\n".join(lookahead_lines(search.lookahead)), flush=True)
    return exit_codes.OK


def _remember(engine: WorkThread, search: _Search, report: TuningReport) -> str | None:
    """Save the results for F4, and the best settings for the next start.

    Returns:
        Why the settings were not saved; None if they were.
    """
    model = search.model
    conditions = search.conditions
    if not search.options.remember:
        return "not saved, because of --dry-run"
    run = PastRun(_with_details(search, report), conditions, time.time())
    engine.run(lambda: PastRuns(paths.tunings_file()).save(engine_access.tuning_key(model), run))
    if reason := why_not_kept(report, search.in_use, conditions):
        return f"not saved, {reason}"

    def remember() -> str | None:
        earlier_choice = engine_access.recall_tuned(model).choice
        choice = choice_to_remember(report, search.in_use, earlier_choice)
        measured = measured_of(report, choice, conditions, engine_access.kernels_version())
        best = best_choice(certain_part(report, search.in_use), search.in_use)
        known_as = KnownAs(model.name, model.quantization, model.weights_bytes)
        history = ReplyHistory(paths.speeds_file())
        if (speeds := measured_speeds(report, best)) is not None:
            history.add(known_as.key(best.weights, best.decode), speeds)
        trouble = engine_access.remember_tuned(model, choice, measured)
        if not trouble and choice != earlier_choice:
            history.mark_tuned(known_as)
        return trouble

    return engine.run(remember)


def _with_details(search: _Search, report: TuningReport) -> TuningReport:
    """Return a report with the lines that F4 shows, too."""
    notes = (*report.notes, *search.conditions.remarks())
    reasons = (*report.reasons, *lookahead_lines(search.lookahead))
    return replace(report, notes=notes, reasons=reasons)


def _as_json(search: _Search, report: TuningReport, is_remembered: bool) -> dict[str, Any]:
    model = search.model
    now = search.in_use
    return {
        "engine": "jalopy",
        "model": model.name,
        "quantization": model.quantization,
        "weights": now.weights,
        "kv_type": now.kv_type,
        "best": asdict(best_choice(report, now)),
        "kernels": {quant: asdict(lookahead) for quant, lookahead in search.lookahead.items()},
        "remembered": is_remembered,
        **asdict(report),
        "conditions": asdict(search.conditions),
        "cpu": engine_access.cpu_level(),
        "versions": versions(),
    }


def _print(search: _Search, report: TuningReport, reason: str | None) -> None:
    """Print the report; ``reason`` says why the best settings were not saved."""
    model = search.model
    now = search.in_use
    glyphs = choose_glyphs(encoding=sys.stdout.encoding)
    columns = min(_MAX_COLUMNS, shutil.get_terminal_size((80, 24)).columns - 1)
    print(
        f"{clean_line(model.name, 60)} · {clean_line(model.quantization, 12)} · context "
        f"{report.n_context} tokens"
    )
    findings = findings_of(report, now, search.conditions)
    if findings is not None:
        print(f"\n{headline(findings, glyphs)}")
    for title, lines in chart_lines(report, now, columns, glyphs):
        print(f"\n{title}")
        for line in lines:
            print(line.text)
    print()
    details = [*lookahead_lines(search.lookahead), *detail_texts(report)]
    remarks = search.conditions.remarks()
    texts = [*why_texts(report), *details, *remarks, f"{progress_text(report)}."]
    if report.curves and reason:
        options = _options_of(best_choice(report, now), now)
        texts.append(f"{reason}. To use them: {options}")
    elif report.curves:
        options = _options_of(choice_to_remember(report, now, now), now)
        texts.append(f"Saved: {options} from the next start on.")
    known_as = KnownAs(model.name, model.quantization, model.weights_bytes)
    usual = ReplyHistory(paths.speeds_file()).usual(known_as)
    if usual is not None:
        threads = counted(usual.threads, "thread")
        texts.append(f"Usual here: {writing_text(usual)} with {threads}.")
    for text in texts:
        _print_text(text[:1].upper() + text[1:], columns)


def _print_text(text: str, columns: int) -> None:
    """Print a sentence; in a terminal, wrap it at its words."""
    if sys.stdout.isatty():
        text = textwrap.fill(text, columns, break_on_hyphens=False)
    print(text)


def _options_of(best: TunedChoice, now: TunedChoice) -> str:
    """Return a choice as options of the command line; memory options only if they change."""
    options = f"--threads {best.decode} --prefill-threads {best.prefill}"
    if best.weights != now.weights:
        options += f" --weights {best.weights}"
    if best.kv_type != now.kv_type:
        options += f" --kv {best.kv_type}"
    return options
