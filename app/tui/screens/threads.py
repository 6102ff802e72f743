"""The best threads and memory modes: measured on the loaded model behind the conversation, applied with one key."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.timer import Timer
from textual.widgets import Static

from app.chat.commands import KV_TYPES, THREADS_AND_WEIGHTS
from app.program.settings import AUTO, DEFAULT_KV_TYPE
from app.program.state import TunedChoice
from app.text import figures
from app.text.glyphs import choose_glyphs
from app.tui.actions import CHAT
from app.tui.bindings import bindings
from app.tui.screens.surroundings import Surroundings
from app.tui.widgets.thread_curve import OptionTable, ThreadCurve
from app.tuning.remembered import best_choice, choice_to_remember
from app.tuning.thread_bars import pinning_line, progress_text
from app.tuning.thread_command import describe_in_use
from app.tuning.threads_in_use import ThreadsInUse

if TYPE_CHECKING:
    from app.chat.events import ModelLoaded
    from app.chat.status import EngineStatus
    from app.program.settings import Settings
    from app.tuning.thread_bars import Comparison, TuningReport

REFRESH_S = 0.25
_PHASES = ("decode", "prefill")
_BAR_CELLS = 16


class ThreadsScreen(Screen[None]):
    """Measures when it opens, unless it has before; polls a record, and only while it is shown."""

    CSS_PATH = "threads.tcss"
    BINDINGS: ClassVar[list[BindingType]] = bindings("threads")
    AUTO_FOCUS = "#threads-body"

    def __init__(self, around: Surroundings) -> None:
        super().__init__()
        self._settings, self._keymap, self._watch = around.settings, around.keymap, around.watch
        self._bridge, self._turns = around.bridge, around.turns
        self._glyphs = choose_glyphs()
        self._phase = _PHASES[0]
        self._wants: tuple[str, ...] = ()
        """Parts of tuning to measure once the engine is free."""
        self._timer: Timer | None = None
        self._is_covered = False
        """Whether help or palette lie above it: what was wanted before is wanted after them."""
        self._model: ModelLoaded | None = None
        self._undo: list[ThreadsInUse] = []
        self._texts: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        """Lay out title, curves, reasons, state, progress and keys."""
        yield Static(id="threads-title", markup=False)
        with VerticalScroll(id="threads-body"):
            with Horizontal(id="thread-curves"):
                for phase in _PHASES:
                    yield ThreadCurve(phase, id=f"thread-{phase}")
            yield OptionTable(id="thread-options")
            yield Static(id="thread-reasons", markup=False)
        yield Static(id="thread-state", markup=False)
        yield Static(id="thread-progress", markup=False)
        yield Static(id="thread-keys", markup=False)

    def on_mount(self) -> None:
        """Begin to watch."""
        self._timer = self.set_interval(REFRESH_S, self.refresh_figures, pause=True)

    def on_screen_resume(self) -> None:
        """Measure if nothing is known about this model yet."""
        if self._timer is not None:
            self._timer.resume()
        report, model = self._bridge.tuning, self._turns.model
        is_unknown = report is None or not report.curves
        if not self._is_covered:
            self._wants = THREADS_AND_WEIGHTS if is_unknown and not self._turns.is_tuning else ()
        self._is_covered = False
        if model is not self._model:
            self._model = model
            self._undo.clear()
        self.refresh_figures()

    def on_screen_suspend(self) -> None:
        """Poll nothing while something else is shown."""
        self._is_covered = self.app.current_mode == "threads"
        if self._timer is not None:
            self._timer.pause()

    def on_resize(self) -> None:
        """Break the lines anew."""
        self.call_after_refresh(self.refresh_figures)

    @property
    def _is_measuring(self) -> bool:
        """Whether a search runs; the chat learns of its end a moment after the report says so."""
        report = self._bridge.tuning
        return self._turns.is_tuning and (report is None or not report.is_over)

    # ---- what is shown

    def refresh_figures(self) -> None:
        """Show how things stand; begin to measure once the engine is free."""
        if self._wants and self._turns.tune(self._wants):
            self._wants = ()
        bridge = self._bridge
        report, in_use = bridge.tuning, bridge.threads
        self.set_class(in_use is None, "-no-model")
        for phase in _PHASES:
            curve = report.curve(phase) if report is not None else None
            count = getattr(in_use.now, phase) if in_use is not None else 0
            widget = self.query_one(f"#thread-{phase}", ThreadCurve)
            widget.display = in_use is not None
            widget.show(curve, count, phase == self._phase, self._glyphs)
        self.query_one("#thread-options", OptionTable).show(
            _compared(report, in_use), self._glyphs, self.size.width - 3
        )
        self._write("threads-title", self._title(report)[: max(1, self.size.width - 2)])
        self._write("thread-reasons", self._reasons(report))
        self._write("thread-state", self._state(in_use))
        self._write("thread-progress", self._progress(report, bridge.status))
        self._write("thread-keys", self._keys(report, in_use))

    def _write(self, widget_id: str, text: str) -> None:
        """Show a text, broken into lines here: Textual 8.2 may keep the height of a text that was replaced at once."""
        columns = max(1, self.size.width - 3)
        text = "\n".join(part for line in text.splitlines() for part in textwrap.wrap(line, columns))
        if self._texts.get(widget_id) != text:
            self._texts[widget_id] = text
            widget = self.query_one(f"#{widget_id}", Static)
            widget.set_class(not text, "-empty")
            widget.styles.height = 1 + text.count("\n")
            widget.update(Content(text))

    def _title(self, report: TuningReport | None) -> str:
        model = self._turns.model
        parts = ["Threads"]
        if model is not None:
            parts.append(f"{model.name} · {model.quantization}")
        if report is not None:
            parts.append(f"context {figures.count(report.n_context)}")
        return "  ".join(parts[:1]) + ("   " + " · ".join(parts[1:]) if len(parts) > 1 else "")

    def _reasons(self, report: TuningReport | None) -> str:
        if report is None:
            return ""
        weights, kv = (report.comparison(part) for part in ("weights", "kv"))
        lines = [kv.reason if kv is not None else "", *report.reasons, pinning_line(report)]
        lines += [weights.reason if weights is not None else "", *report.notes]
        if not report.is_over and (cost := self._watch.pace.cost) is not None:
            lines.append(f"The interface itself takes {100 * cost:.0f} % of one core meanwhile.")
        return "\n".join(line for line in lines if line)

    def _state(self, in_use: ThreadsInUse | None) -> str:
        if in_use is None:
            shown = self._keymap.key_or_command("app.models")
            return f"No model is loaded: {shown} in the chat shows which there are."
        settings = self._settings
        text = f"In use: {describe_in_use(in_use)}."
        named = _named(settings)
        if in_use.remembered is not None and named:
            text += f" The settings name {named}: they go before what is remembered."
        return text

    def _progress(self, report: TuningReport | None, status: EngineStatus) -> str:
        turns = self._turns
        if self._is_measuring and report is not None:
            done = figures.bar(int(10 * report.elapsed_s), max(1, int(10 * report.budget_s)), _BAR_CELLS)
            return f"{progress_text(report)} {done} the conversation is untouched"
        if self._is_measuring:
            return "measuring begins"
        if turns.is_busy and not turns.is_tuning:
            rate = f" at {figures.rate(status.rate_tps)} tok/s" if status.rate_tps > 0 else ""
            later = "; measuring begins when it is free" if self._wants else ""
            return f"the engine is {status.activity.value}{rate}{later}"
        return progress_text(report) if report is not None else ""

    def _keys(self, report: TuningReport | None, in_use: ThreadsInUse | None) -> str:
        key = self._keymap.first_key
        if in_use is None:
            return f"{key('threads.leave')} back"
        is_running = self._is_measuring
        keys = []
        if _has_findings(report):
            assert report is not None
            keys.append(f"{key('threads.apply_best')} use the best ({_shown_choice(best_choice(report, in_use.now))})")
        keys += [f"1-{min(9, in_use.most)} choose by hand", f"{key('threads.other_phase')} other column"]
        if self._undo:
            keys.append(f"{key('threads.undo')} undo (was {_shown_choice(self._undo[-1].now)})")
        if not is_running:
            keys.append(f"{key('threads.measure')} measure{' again' if report is not None else ''}")
            keys.append(f"{key('threads.measure_kv')} KV types")
        keys.append(f"{key('threads.leave')} {'stop' if is_running else 'back'}")
        return _wrapped(keys, self.size.width - 3)

    # ---- what the user asks for

    def action_apply_best(self) -> None:
        """Use and remember the best of what was measured."""
        bridge = self._bridge
        report, in_use = bridge.tuning, bridge.threads
        if report is None or in_use is None or not _has_findings(report):
            return
        is_truth = not (report.is_over and bridge.tuning_conditions.is_swapping)
        best = choice_to_remember(report, in_use.now, in_use.remembered) if is_truth else in_use.remembered
        self._choose(best_choice(report, in_use.now), best)

    def on_key(self, event: events.Key) -> None:
        """Choose a count by its digit, for the column that is marked."""
        in_use = self._bridge.threads
        if in_use is not None and event.key in "123456789" and int(event.key) <= in_use.most:
            event.stop()
            count, now = int(event.key), in_use.now
            choice = replace(now, decode=count) if self._phase == "decode" else replace(now, prefill=count)
            before = in_use.remembered or TunedChoice(1, 1)
            self._choose(choice, replace(choice, weights=before.weights, kv_type=before.kv_type))

    def action_undo(self) -> None:
        """Bring back what held before the last choice, remembered or not."""
        if self._undo:
            self._end_measuring()
            self._bridge.wish_threads(self._undo.pop())
            self.refresh_figures()

    def action_measure(self) -> None:
        """Measure again."""
        self._measure(THREADS_AND_WEIGHTS)

    def action_measure_kv(self) -> None:
        """Compare types of the KV cache, with the best threads; measure those first if they are not known."""
        report = self._bridge.tuning
        self._measure(KV_TYPES if report is not None and report.curves else THREADS_AND_WEIGHTS + KV_TYPES)

    def _measure(self, parts: tuple[str, ...]) -> None:
        self._wants = () if self._is_measuring else parts
        self.refresh_figures()

    def action_other_phase(self) -> None:
        """Let digits choose for the other column."""
        self._phase = _PHASES[1 - _PHASES.index(self._phase)]
        self.refresh_figures()

    def action_leave(self) -> None:
        """Stop what is measured; with nothing to stop, go back."""
        if self._is_measuring:
            self._end_measuring()
        else:
            self._wants = ()
            self._turns.stop_tuning()
            self.app.switch_mode(CHAT)

    def _end_measuring(self) -> None:
        self._wants = ()
        self._turns.stop_tuning()

    def _choose(self, choice: TunedChoice, remembered: TunedChoice | None) -> None:
        """Use and remember something else; the engine follows between two steps, and what is shown follows it."""
        bridge = self._bridge
        self._end_measuring()
        if bridge.threads is None:
            return
        before = bridge.threads
        # A cache keeps its type: another one is only remembered.
        wanted = ThreadsInUse(replace(choice, kv_type=before.now.kv_type), remembered, before.most)
        if wanted != before:
            self._undo.append(before)
            bridge.wish_threads(wanted)


def _compared(report: TuningReport | None, in_use: ThreadsInUse | None) -> tuple[tuple[Comparison, str], ...]:
    """Comparisons, each with the way in use."""
    if report is None or in_use is None:
        return ()
    present = {"weights": in_use.now.weights, "kv": in_use.now.kv_type}
    return tuple((comparison, present[comparison.part]) for comparison in report.comparisons)


def _has_findings(report: TuningReport | None) -> bool:
    return report is not None and bool(report.curves or any(found.is_measured for found in report.comparisons))


def _shown_choice(choice: TunedChoice) -> str:
    huge = ", huge pages" if choice.weights == "huge" else ""
    kv = f", {choice.kv_type}" if choice.kv_type not in ("", DEFAULT_KV_TYPE) else ""
    return f"{choice.decode}, {choice.prefill}{huge}{kv}"


def _named(settings: Settings) -> str:
    """Name the settings that override remembered choices."""
    named = {
        "threads": settings.threads or settings.prefill_threads,
        "weights": settings.weights != AUTO,
        "the KV cache's type": settings.kv_type != AUTO,
    }
    return " and ".join(name for name, is_named in named.items() if is_named)


def _wrapped(parts: list[str], columns: int) -> str:
    """Join the parts, breaking lines only between them."""
    lines = [parts[0]]
    for part in parts[1:]:
        joined = f"{lines[-1]} · {part}"
        lines[-1:] = [joined] if len(joined) <= columns else [lines[-1], part]
    return "\n".join(lines)
