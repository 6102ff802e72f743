"""``jalopy tune``: the best thread counts for this machine and model, measured and remembered. No Textual."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app import engine_access, exit_codes
from app.bench import versions
from app.clean_text import clean_line
from app.engine_thread import EngineThread
from app.glyphs import choose_glyphs
from app.json_line import json_line
from app.progress_line import ProgressLine
from app.refusals import Refusal, say
from app.reply import Clock
from app.settings import Settings
from app.state import ThreadChoice
from app.thread_bars import TITLES, curve_lines, pinning_line, progress_text

if TYPE_CHECKING:
    from engine.tuning import Sweep
    from engine.tuning_report import TuningReport

_ROOM_TOKENS = 256
"""Behind the context, for what is measured."""
_MOST_COLUMNS = 78


@dataclass(frozen=True)
class TuneOptions:
    """What the command line of ``tune`` asks for, besides settings."""

    model: str
    budget_s: float
    n_context: int = 64
    as_json: bool = False
    remember: bool = True


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
    if report is None:
        raise Refusal("jalopy tune: stopped before anything was measured", exit_codes.INTERRUPTED)
    best = best_choice(report, ThreadChoice(model.threads, model.prefill_threads, model.pinned))
    trouble = _remember(engine, model, report, best, options)
    if options.as_json:
        print(json_line(_as_json(model, report, best, settings, trouble is None)), flush=True)
    else:
        _print(model, report, best, trouble)
    return exit_codes.INTERRUPTED if report.state == "stopped" else exit_codes.OK


def best_choice(report: TuningReport, now: ThreadChoice) -> ThreadChoice:
    """Return the best of what was measured, and what holds now for the rest."""
    return ThreadChoice(
        decode=report.best("decode") or now.decode,
        prefill=report.best("prefill") or now.prefill,
        pinned=now.pinned if report.pinned is None else report.pinned,
    )


class _Search:
    """What happens in the engine's thread."""

    def __init__(
        self, model: Any, options: TuneOptions, settings: Settings, progress: ProgressLine, clock: Clock
    ) -> None:
        self._model, self._options, self._settings = model, options, settings
        self._progress, self._clock = progress, clock
        self._stopped = threading.Event()
        self._session: Any = None
        self._sweep: Sweep | None = None

    def cancel(self) -> None:
        """Stop; for another thread."""
        self._stopped.set()
        if self._sweep is not None:
            self._sweep.cancel()
        elif self._session is not None:
            self._session.cancel()

    def run(self) -> TuningReport | None:
        """Fill a context as a conversation would, and search; None if it was stopped before that."""
        n_context = min(self._options.n_context, max(1, self._model.config.context_length - _ROOM_TOKENS))
        n_ctx = min(n_context + _ROOM_TOKENS, self._model.config.context_length)
        self._session = self._model.session(n_ctx, self._settings.kv_type)
        for line in self._model.notices:
            say(f"jalopy: {line}")
        try:
            return self._search(n_context)
        except Exception as error:
            if getattr(error, "exit_code", None) == exit_codes.INTERRUPTED:
                return None
            raise
        finally:
            self._session.close()

    def _search(self, n_context: int) -> TuningReport | None:
        vocab_size = self._model.config.vocab_size
        context = [7919 * (i + 1) % vocab_size for i in range(n_context)]
        self._session.prefill(context, on_progress=lambda done, total: self._show_context(done, total))
        may_pin = self._settings.pin_threads == "auto"
        budget_s = self._options.budget_s
        sweep = self._sweep = engine_access.make_sweep(self._model, self._session, budget_s, self._clock, may_pin)
        if self._stopped.is_set():
            return None
        report = None
        for report in sweep:
            self._progress.show(progress_text(report))
        return report

    def _show_context(self, done: int, total: int) -> None:
        if self._stopped.is_set():
            self._session.cancel()
        self._progress.show(f"filling a context of {total} tokens: {done}")


def _remember(
    engine: EngineThread, model: Any, report: TuningReport, best: ThreadChoice, options: TuneOptions
) -> str | None:
    """Remember the best of a search that was not stopped; returns why not."""
    if not options.remember:
        return "not remembered, as was asked"
    if report.state == "stopped" or not report.curves:
        return "not remembered, since it was not measured to the end"
    return engine.run(lambda: engine_access.remember_threads(model, best))


def _as_json(
    model: Any, report: TuningReport, best: ThreadChoice, settings: Settings, is_remembered: bool
) -> dict[str, Any]:
    return {
        "engine": "jalopy",
        "model": model.name,
        "quantization": model.quantization,
        "weights": settings.weights,
        "kv_type": settings.kv_type,
        "best": dataclasses.asdict(best),
        "remembered": is_remembered,
        **dataclasses.asdict(report),
        "cpu": engine_access.cpu_level(),
        "versions": versions(),
    }


def _print(model: Any, report: TuningReport, best: ThreadChoice, trouble: str | None) -> None:
    glyphs = choose_glyphs(encoding=sys.stdout.encoding)
    columns = min(_MOST_COLUMNS, shutil.get_terminal_size((80, 24)).columns - 1)
    print(f"{clean_line(model.name, 60)} · {clean_line(model.quantization, 12)} · context {report.n_context} tokens")
    for curve in report.curves:
        print(f"\n{TITLES[curve.phase]} (samples of {curve.n_tokens} tokens)")
        in_use = model.threads if curve.phase == "decode" else model.prefill_threads
        for line in curve_lines(curve, in_use, columns, glyphs):
            print(line.text)
    print()
    for text in (*report.reasons, pinning_line(report), *report.notes, f"{progress_text(report)}."):
        if text:
            print(text[:1].upper() + text[1:])
    if report.curves:
        chosen = f"--threads {best.decode} --prefill-threads {best.prefill}"
        print(f"{trouble} ({chosen} uses them)" if trouble else f"Remembered: {chosen} from the next start on.")
