"""The threads screen: measures threads and memory modes on the open model, and applies the best."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll

from app.backend.protocol import ENERGY, KV_TYPES, RACE, THREADS_AND_WEIGHTS
from app.machine.sensors.tuning_conditions import QUIET_CORES
from app.machine.tuning.battery_life import EnergyRun
from app.machine.tuning.findings import (
    Findings,
    describe_briefly,
    detail_texts,
    findings_of,
    headline,
    measured_text,
    why_texts,
)
from app.machine.tuning.levels import with_choice
from app.machine.tuning.promise import promise_of
from app.machine.tuning.quiet import QuietWatch, busy_text
from app.machine.tuning.saved_tuning import choice_to_remember
from app.machine.tuning.thread_bars import counts_text, progress_text
from app.machine.tuning.threads_in_use import (
    ChoiceOrigin,
    ThreadsInUse,
    choice_to_keep,
    describe_in_use,
)
from app.models.library.speed import usual_text
from app.program.settings import AUTO
from app.program.state import TunedChoice
from app.text import figures
from app.text.glyphs import choose_glyphs
from app.tui.actions import CHAT
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.lines import EMPTY, Line, Span, SpanRole, line, muted
from app.tui.drawing.panels import FRAME_COLUMNS, FRAME_ROWS, gauge, panel
from app.tui.screens.figure_screen import FigureScreen
from app.tui.widgets.figure_lines import FigureLines, KeyLine, ScreenTitle
from app.tui.widgets.race_panel import BatteryPanel, RacePanel
from app.tui.widgets.thread_curve import LEAST_ROWS, ThreadCurve, n_rows, option_panels, room_lines

if TYPE_CHECKING:
    from app.machine.tuning.thread_bars import TuningReport

_PHASES = ("decode", "prefill")
_LEAST_COLUMNS = 20
_TALL_ROWS = 24
"""Height from which the screen explains what will be measured."""
_FRAME_S = 0.08
"""Seconds between two pictures of a race."""
_MAX_THICKNESS = 3
"""Limit on the rows of a bar."""
_EXPLANATION = (
    "Tries every thread count, then huge pages and memory prefetch, on this conversation. Takes "
    "1-2 minutes at full load; changes nothing until you accept."
)
_MEASURES = "Not measured yet: 1-2 minutes at full load; nothing changes until you accept."


class ThreadsScreen(FigureScreen):
    """Screen for tuning. Measuring starts with a key; while shown, the screen polls the report."""

    CSS_PATH = "threads.tcss"
    BINDINGS = bindings("threads")
    AUTO_FOCUS = "#threads-body"
    PERIOD_S = 0.25

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__()
        self._chat = chat
        self._keymap = chat.core.keymap
        self._watch = chat.performance
        self._engine_thread = chat.core.engine_thread
        self._chat_session = chat.core.chat_session
        self._hand_tuning = chat.core.hand_tuning
        self._glyphs = choose_glyphs()
        self._phase = _PHASES[0]
        self._pending_parts: tuple[str, ...] = ()
        """Parts of tuning to measure as soon as the engine is free."""
        self._is_covered = False
        """Whether help or palette cover the screen; pending parts then stay pending."""
        self._quiet = QuietWatch()
        self._is_hasty = False
        """Whether the pending search begins although other programs are busy."""
        self._is_detailed = False
        """Whether details are shown instead of bars."""
        self._race = RacePanel()
        self._battery = BatteryPanel()
        self._n_top_rows = 0
        """Rows of the headline."""

    def compose(self) -> ComposeResult:
        """Lay out title, headline, bars, reasons, machine, progress and keys."""
        yield ScreenTitle("Threads", id="threads-title")
        with VerticalScroll(id="threads-body"):
            yield FigureLines("thread-headline")
            yield FigureLines("thread-race")
            with Horizontal(id="thread-curves"):
                for phase in _PHASES:
                    yield ThreadCurve(phase, id=f"thread-{phase}")
            yield FigureLines("thread-options")
            yield FigureLines("thread-reasons")
            yield FigureLines("thread-room")
        yield FigureLines("thread-progress")
        yield KeyLine(id="thread-keys")

    def on_screen_resume(self) -> None:
        """Show the last results; measuring waits for a key, because it takes every core."""
        self._timer.resume()
        self._watch.register_view(self, True)
        if not self._is_covered:
            self._pending_parts = ()
            self._race.end()
            self._battery.is_shown = False
        self._is_covered = False
        self.show_figures()

    def on_screen_suspend(self) -> None:
        """Stop watching the machine while another screen is shown."""
        self._is_covered = self.app.current_mode == "threads"
        self._watch.register_view(self, False)

    def on_mount(self) -> None:
        """Create the timers."""
        super().on_mount()
        self._race_timer = self.set_interval(_FRAME_S, self._draw_race, pause=True)

    @property
    def _is_measuring(self) -> bool:
        """Whether a search runs. The report knows the end of a search before the chat does."""
        report = self._engine_thread.state.tuning
        if self._has_other_panel:
            return False
        return self._chat_session.is_tuning and (report is None or not report.is_over)

    @property
    def _has_other_panel(self) -> bool:
        """Whether a race or the longest battery is shown."""
        return self._race.is_shown or self._battery.is_shown

    @property
    def _energy_run(self) -> EnergyRun | None:
        """The last measurement of energy; None before the first sample."""
        return self._engine_thread.state.energy

    @property
    def _has_bars(self) -> bool:
        """Whether the bars are shown, not details or a race."""
        return not self._is_detailed and not self._has_other_panel

    @property
    def _findings(self) -> Findings | None:
        """Results of the last search for the choice in use; None if nothing was measured."""
        state = self._engine_thread.state
        if state.threads is None:
            return None
        return findings_of(state.tuning, state.threads.now, state.tuning_conditions)

    # ---- drawing

    def show_figures(self) -> None:
        """Draw the present state, and start pending measurements once engine and machine are
        free."""
        now_s = self._engine_thread.now_s()
        self._quiet.add(self._watch.others_cores, now_s)
        may_begin = self._is_hasty or self._quiet.is_quiet(now_s)
        if self._pending_parts and may_begin and self._chat_session.tune(self._pending_parts):
            self._pending_parts = ()
            self._is_hasty = False
        in_use = self._engine_thread.state.threads
        self.set_class(in_use is None, "-no-model")
        body = self.query_one("#threads-body")
        width = max(_LEAST_COLUMNS, body.scrollable_content_region.width or self.size.width)
        findings = self._findings
        top = self._headline_panel(findings, width)
        self._n_top_rows = len(top)
        options = self._option_panels(width)
        reasons = self._reason_panels(width)
        self._fill("thread-headline", top)
        self._fill("thread-options", options)
        self._fill("thread-reasons", reasons)
        self._fill_room(findings, width, len(top) + len(options) + len(reasons))
        if self._is_measuring:
            state = line(Span("measuring", SpanRole.CAUTION))
        else:
            state = EMPTY
        self._draw_race()
        self.query_one(ScreenTitle).set_content(self._context_text(), state)
        self._fill("thread-progress", self._progress_lines())
        self.query_one(KeyLine).set_content(self._keys())

    def _draw_race(self) -> None:
        """Draw the race or the longest battery in the rows of the bars, if one is shown."""
        lines: list[Line] = []
        in_use = self._engine_thread.state.threads
        body = self.query_one("#threads-body")
        width = max(_LEAST_COLUMNS, body.scrollable_content_region.width)
        if self._battery.is_shown and in_use is not None:
            run = self._energy_run
            lines = self._battery.lines(run, in_use.now.decode, width, self._glyphs)
        elif self._race.is_shown:
            height = body.outer_size.height - self._n_top_rows
            race = self._engine_thread.state.race
            now_s = self._engine_thread.now_s()
            lines = self._race.lines(race, now_s, width, height, self._glyphs)
        self._fill("thread-race", lines)

    def _headline_panel(self, findings: Findings | None, width: int) -> list[Line]:
        """Return a panel with the result in one line, and below it what is in use and saved."""
        in_use = self._engine_thread.state.threads
        report = self._engine_thread.state.tuning
        if in_use is None:
            title = "Computed elsewhere" if self._server_name else "No model is open"
            return self._text_panel(title, [self._state()], width)
        texts = [self._state()]
        note = EMPTY
        if findings is not None and report is not None:
            texts = [headline(findings, self._glyphs), f"In use: {texts[0]}"]
            if findings.why_not_kept:
                texts.append(f"Result not kept, {findings.why_not_kept}.")
            if report.is_over:
                state = self._engine_thread.state
                on_battery = state.tuning_conditions.on_battery
                measured = measured_text(state.tuning_unix_s, time.time(), on_battery)
                note = line(muted(measured))
        elif report is not None:
            texts += report.notes
        elif self.size.height < _TALL_ROWS:
            texts.append(_MEASURES)
        columns = max(_LEAST_COLUMNS, width - FRAME_COLUMNS)
        rows = [textwrap.wrap(text, columns) for text in texts]
        body = [line(row) for row_texts in rows for row in row_texts]
        if findings is not None:
            role = SpanRole.STRONG
            if findings.why_not_kept:
                role = SpanRole.CAUTION
            n_head = len(rows[0])
            body[:n_head] = [line(Span(row, role)) for row in rows[0]]
        return panel("Result" if findings else "In use", body, width, self._glyphs, note=note)

    def _option_panels(self, width: int) -> list[Line]:
        report = self._engine_thread.state.tuning
        in_use = self._engine_thread.state.threads
        if report is None or in_use is None or not self._has_bars:
            return []
        report = with_choice(report, in_use.now)
        present = {"weights": in_use.now.weights, "kv": in_use.now.kv_type}
        return option_panels(
            [(comparison, present[comparison.part]) for comparison in report.comparisons],
            counts_text(report),
            self._glyphs,
            width,
        )

    def _fill_room(self, findings: Findings | None, width: int, n_used_rows: int) -> None:
        """Draw the curves and, if rows are left below everything else, the state of the machine."""
        report = self._engine_thread.state.tuning
        in_use = self._engine_thread.state.threads
        if report is not None and in_use is not None:
            report = with_choice(report, in_use.now)
        is_tall = in_use is not None and self.size.height >= _TALL_ROWS
        max_count = 0
        max_thickness = 1
        if in_use is not None and is_tall:
            max_count = min(9, in_use.most)
            max_thickness = _MAX_THICKNESS
        curves = [report.curve(phase) if report is not None else None for phase in _PHASES]

        n_free_rows = self.query_one("#threads-body").outer_size.height - n_used_rows - FRAME_ROWS
        has_curves = in_use is not None and self._has_bars
        thickness, n_curve_rows = 1, max(n_rows(curve, max_count, 1) for curve in curves)
        for thicker in range(2, max_thickness + 1):
            n_thicker_rows = max(n_rows(curve, max_count, thicker) for curve in curves)
            if n_thicker_rows + LEAST_ROWS <= n_free_rows:
                thickness, n_curve_rows = thicker, n_thicker_rows
        if has_curves:
            n_free_rows -= n_curve_rows
        else:
            n_free_rows += FRAME_ROWS

        for phase, widget, curve in zip(_PHASES, self.query(ThreadCurve), curves, strict=True):
            widget.display = has_curves
            if in_use is not None and has_curves:
                count = getattr(in_use.now, phase)
                hint = self._digits_hint(phase)
                usual = self._usual_text(phase)
                widget.set_content(curve, count, usual, hint, max_count, thickness)

        has_room = is_tall and not self._has_other_panel and n_free_rows >= LEAST_ROWS
        machine: list[Line] = []
        if has_room:
            machine = room_lines(
                self._watch.read_view(),
                report,
                findings is None or not findings.why_not_kept,
                width,
                n_free_rows,
                self._glyphs,
            )
        self._fill("thread-room", machine)

    def _usual_text(self, phase: str) -> str:
        """Return the usual speed with the threads in use; empty if they are other threads."""
        in_use = self._engine_thread.state.threads
        earlier = self._engine_thread.state.figures.earlier
        if in_use is None or earlier is None or earlier.usual.threads != in_use.now.decode:
            return ""
        usual = earlier.usual
        if phase == "decode":
            return usual_text(usual.decode_tps, usual.basis)
        return usual_text(usual.prefill_tps, usual.prefill_basis)

    def _digits_hint(self, phase: str) -> str:
        """Return the keys that set the count of a phase; empty if digits set the other phase."""
        in_use = self._engine_thread.state.threads
        if in_use is None or phase != self._phase:
            return ""
        other_phase = self._keymap.hint("threads.other_phase", "other column")
        hints = (f"1-{min(9, in_use.most)} set by hand", other_phase)
        return self._glyphs.between.join(filter(None, hints))

    def _fill(self, widget_id: str, lines: list[Line]) -> None:
        widget = self.query_one(f"#{widget_id}", FigureLines)
        widget.display = bool(lines)
        widget.fill(lines)

    def _context_text(self) -> str:
        model = self._chat_session.model
        report = self._engine_thread.state.tuning
        words = []
        if model is not None:
            words += [model.name, model.quantization]
        if report is not None:
            words.append(f"context {figures.count(report.n_context)}")
        return self._glyphs.between.join(words)

    @property
    def _server_name(self) -> str:
        """Server that computes the replies; empty if this machine does."""
        if self._chat_session.model is not None:
            return self._chat_session.model.server
        return ""

    def _reason_panels(self, width: int) -> list[Line]:
        """Return panels with the reasons for the results or, on request, with their details."""
        report = self._engine_thread.state.tuning
        if self._engine_thread.state.threads is None or self._has_other_panel:
            return []
        if report is None:
            is_tall = self.size.height >= _TALL_ROWS
            texts = [_EXPLANATION] if is_tall or self._is_detailed else []
            return self._text_panel("What tuning measures", texts, width)
        if self._is_detailed:
            return self._text_panel("Details", self._details(report), width)
        return self._text_panel("Why", why_texts(report), width)

    def _text_panel(self, title: str, texts: Iterable[str], width: int) -> list[Line]:
        """Return a panel with wrapped texts; empty if there are none."""
        columns = max(_LEAST_COLUMNS, width - FRAME_COLUMNS)
        body = [line(row) for text in texts for row in textwrap.wrap(text, columns)]
        if body:
            return panel(title, body, width, self._glyphs)
        return []

    def _details(self, report: TuningReport) -> list[str]:
        details = [*why_texts(report), *detail_texts(report)]
        if not report.is_over and (cost := self._watch.pace.cost) is not None:
            details.append(f"The screen itself uses {100 * cost:.0f} % of one core.")
        if (findings := self._findings) is not None:
            best_tps = findings.best_tps.get(_PHASES[0], 0.0)
            if bound := self._watch.bound_text(best_tps, findings.best.decode):
                details.append(f"The best speed of writing is {bound}.")
        return details or ["Nothing was measured."]

    def _state(self) -> str:
        in_use = self._engine_thread.state.threads
        settings = self._chat.core.settings
        if self._server_name:
            return f"{self._server_name} computes the replies with its own threads."
        if in_use is None:
            key = self._keymap.key_or_command("app.models")
            return f"No model is loaded. Press {key} in the chat to choose one."
        overrides = {
            "threads": settings.threads or settings.prefill_threads,
            "weights": settings.weights != AUTO,
            "kv_type": settings.kv_type != AUTO,
        }
        names = " and ".join(name for name, is_set in overrides.items() if is_set)
        text = f"{describe_in_use(in_use)}."
        if in_use.remembered is not None and names:
            text += f" Your settings for {names} override the saved choice."
        return text

    def _progress_lines(self) -> list[Line]:
        """Return progress in words and as a gauge, by rounds or by time, whichever is further."""
        report = self._engine_thread.state.tuning
        text = self._progress()
        width = max(_LEAST_COLUMNS, self.size.width - 2)
        lines = [line(Span(row, SpanRole.CAUTION)) for row in textwrap.wrap(text, width)]
        if not text or not self._is_measuring or report is None:
            return lines
        share = 0.0
        if report.budget_s:
            share = report.elapsed_s / report.budget_s
        if report.n_rounds:
            share = max(share, (report.round_number - 1) / report.n_rounds)
        remark = "the conversation does not change"
        bar = gauge(share, max(8, width - len(remark) - 2), self._glyphs, SpanRole.WRITING)
        return [*lines, (*bar, muted(f"  {remark}"))]

    def _progress(self) -> str:
        report = self._engine_thread.state.tuning
        status = self._engine_thread.status
        if self._battery.is_shown and not self._pending_parts:
            return ""
        if self._race.is_shown and self._quiet.others_cores <= QUIET_CORES:
            return ""
        if self._race.is_shown:
            load = busy_text(self._quiet.others_cores, self._n_cores)
            return f"{load.capitalize()}: they slow the race"
        if self._is_measuring and report is None:
            return "starting to measure"
        if (
            not self._is_measuring
            and self._chat_session.is_busy
            and not self._chat_session.is_tuning
        ):
            text = f"The engine is {status.activity.value}"
            if status.rate_tps > 0:
                text += f" at {figures.rate(status.rate_tps)} tok/s"
            if self._pending_parts:
                text += ". Measuring starts when it is free"
            return text
        others = busy_text(self._quiet.others_cores, self._n_cores)
        key = self._keymap.first_key
        if self._pending_parts:
            anyway = f"{key('threads.measure_now')} measures anyway"
            if self._quiet.others_cores <= QUIET_CORES:
                return "Other programs are quiet: measuring begins in a moment"
            return f"{others.capitalize()}: measuring begins when they are quiet, {anyway}"
        words = []
        if report is not None and (progress := progress_text(report)):
            words.append(progress)
        if self._quiet.others_cores > QUIET_CORES and not self._is_measuring:
            is_enter_free = self._choice_to_keep() is None
            starts = key("threads.apply_best" if is_enter_free else "threads.measure")
            anyway = f"{key('threads.measure_now')} measures anyway"
            words.append(
                f"{others.capitalize()}: {starts} waits and begins when they are quiet, {anyway}"
            )
        return ". ".join(words)

    @property
    def _n_cores(self) -> int:
        """Number of logical CPUs that this process may use."""
        in_use = self._engine_thread.state.threads
        return in_use.most if in_use is not None else 1

    def _keys(self) -> list[tuple[str, str]]:
        key = self._keymap.first_key
        in_use = self._engine_thread.state.threads
        if in_use is None:
            return [(key("threads.leave"), "back")]
        if self._race.is_shown:
            return [(key("threads.race"), "race again"), (key("threads.leave"), "back to the bars")]
        if self._battery.is_shown:
            return self._battery_keys(in_use)
        is_running = self._is_measuring
        is_waiting = bool(self._pending_parts)
        to_keep = self._choice_to_keep()
        findings = self._findings
        keys = []
        if to_keep is not None:
            keys.append((key("threads.apply_best"), f"keep {describe_briefly(to_keep)}"))
        elif not is_running and not is_waiting:
            keys.append((key("threads.apply_best"), self._measuring_words))
        if findings is not None and not findings.is_best_in_use:
            words = "try it"
            if to_keep is None or in_use.origin is ChoiceOrigin.HAND:
                words = f"try {describe_briefly(findings.best)}"
            keys.append((key("threads.try_best"), words))
        keys.append((f"1-{min(9, in_use.most)}", "set by hand"))
        previous = self._hand_tuning.previous
        if previous is not None:
            earlier = describe_briefly(previous.now)
            if previous.now == in_use.now:
                earlier = "not kept"
            keys.append((key("threads.undo"), f"undo (was {earlier})"))
        if to_keep is not None and not is_running and not is_waiting:
            keys.append((key("threads.measure"), self._measuring_words))
        if is_waiting or (not is_running and self._quiet.others_cores > QUIET_CORES):
            keys.append((key("threads.measure_now"), "measure anyway"))
        if not is_running and not is_waiting:
            keys.append((key("threads.measure_kv"), "KV types"))
            keys.append((key("threads.race"), "race"))
            if self._watch.measures_energy:
                keys.append((key("threads.battery"), "longest battery"))
        keys.append((key("threads.details"), "bars" if self._is_detailed else "details"))
        keys.append((key("threads.explain"), "words"))
        if is_running:
            leaving = "stop"
        elif is_waiting:
            leaving = "do not wait"
        else:
            leaving = "back"
        return [*keys, (key("threads.leave"), leaving)]

    @property
    def _measuring_words(self) -> str:
        """Words for the key that measures, or waits until other programs are quiet."""
        words = "measure (1-2 minutes)"
        if self._findings is not None:
            words = "measure again"
        if self._quiet.others_cores > QUIET_CORES:
            return f"{words.removesuffix(' (1-2 minutes)')} when quiet"
        return words

    def _battery_keys(self, in_use: ThreadsInUse) -> list[tuple[str, str]]:
        key = self._keymap.first_key
        keys = []
        best = self._thriftiest
        if best is not None and best != in_use.now.decode:
            keys.append((key("threads.apply_best"), f"use {figures.counted(best, 'thread')}"))
        elif choice_to_keep(in_use) is not None:
            keys.append((key("threads.apply_best"), f"keep {describe_briefly(in_use.now)}"))
        if not self._chat_session.is_tuning and not self._pending_parts:
            keys.append((key("threads.battery"), "measure again"))
        if self._pending_parts:
            keys.append((key("threads.measure_now"), "measure anyway"))
        leaving = "stop" if self._chat_session.is_tuning else "back to the bars"
        return [*keys, (key("threads.leave"), leaving)]

    @property
    def _thriftiest(self) -> int | None:
        """The count with the least energy per token; None if it is not measured."""
        run = self._energy_run
        if run is None or not run.is_reliable:
            return None
        return run.thriftiest

    def _choice_to_keep(self) -> TunedChoice | None:
        """Return the choice that Enter saves: the one set by hand, else the best of a search that
        can be trusted; None if there is neither, or it is saved already."""
        report = self._engine_thread.state.tuning
        in_use = self._engine_thread.state.threads
        findings = self._findings
        if in_use is None:
            return None
        if (by_hand := choice_to_keep(in_use)) is not None:
            return by_hand
        if report is None or findings is None or self._is_measuring or findings.why_not_kept:
            return None
        best = choice_to_remember(report, in_use.now, in_use.remembered)
        if best == in_use.remembered and findings.is_best_in_use:
            return None
        return best

    # ---- actions

    def action_apply_best(self) -> None:
        """Save what was set by hand, or use and save the best results, or start to measure."""
        to_keep = self._choice_to_keep()
        in_use = self._engine_thread.state.threads
        if in_use is None:
            return
        if self._has_other_panel:
            self._use_thriftiest(in_use)
            return
        if to_keep is None and not self._is_measuring:
            self.action_measure()
        elif to_keep is not None:
            choice = in_use.now
            promise = None
            if choice_to_keep(in_use) is None:
                choice = replace(to_keep, weights=to_keep.weights or choice.weights)
                findings = self._findings
                promise = promise_of(findings) if findings is not None else None
            self._hand_tuning.expect(promise)
            self._end_measuring()
            self._hand_tuning.use_and_save(choice, to_keep)

    def action_try_best(self) -> None:
        """Use the best results so far for this run."""
        findings = self._findings
        if findings is not None:
            self._end_measuring()
            self._hand_tuning.try_choice(findings.best, ChoiceOrigin.TRIAL)

    def on_key(self, event: events.Key) -> None:
        """Set the count of the marked column by a digit, for this run."""
        in_use = self._hand_tuning.chosen
        if in_use is not None and event.key in "123456789" and int(event.key) <= in_use.most:
            event.stop()
            count: dict[str, Any] = {self._phase: int(event.key)}
            self._end_measuring()
            self._hand_tuning.try_choice(replace(in_use.now, **count))

    def action_undo(self) -> None:
        """Restore the choice before the last change, both in use and saved."""
        if self._hand_tuning.previous is not None:
            self._end_measuring()
            self._hand_tuning.undo()
            self.show_figures()

    def action_measure_kv(self) -> None:
        """Compare KV cache types with the best threads, which are measured first if unknown."""
        report = self._engine_thread.state.tuning
        has_curves = report is not None and bool(report.curves)
        self._measure(KV_TYPES if has_curves else THREADS_AND_WEIGHTS + KV_TYPES)

    def action_measure(self) -> None:
        """Measure threads and weights as soon as engine and machine are free."""
        self._measure(THREADS_AND_WEIGHTS)

    def action_measure_now(self) -> None:
        """Measure, or begin the waiting search, although other programs are busy."""
        self._is_hasty = True
        self._measure(self._pending_parts or THREADS_AND_WEIGHTS)

    def _measure(self, tuning_parts: tuple[str, ...]) -> None:
        if self._is_measuring:
            self._pending_parts = ()
        else:
            self._pending_parts = tuning_parts
        self.show_figures()

    def action_race(self) -> None:
        """Write one sentence with 1, 2, 4 ... threads, and replay them side by side."""
        if not self._may_begin:
            return
        self._battery.is_shown = False
        self._race.begin(self._engine_thread.state.race)
        self._race_timer.resume()
        self._pending_parts = RACE
        self._is_hasty = True
        self.show_figures()

    @property
    def _may_begin(self) -> bool:
        """Whether a race or a measurement of energy may begin."""
        has_model = self._engine_thread.state.threads is not None
        return has_model and not self._pending_parts and not self._chat_session.is_tuning

    def action_battery(self) -> None:
        """Measure which thread count needs the least energy per token."""
        if not self._may_begin or not self._watch.measures_energy:
            return
        self._race.end()
        self._battery.is_shown = True
        self._pending_parts = ENERGY
        self.show_figures()

    def _use_thriftiest(self, in_use: ThreadsInUse) -> None:
        """Use the count with the least energy per token, or keep it once it is in use."""
        best = self._thriftiest
        if not self._battery.is_shown or best is None:
            return
        if best != in_use.now.decode:
            self._hand_tuning.try_choice(replace(in_use.now, decode=best))
        else:
            self._hand_tuning.keep()
        self.show_figures()

    def action_details(self) -> None:
        """Show details instead of the bars, or the bars again."""
        self._is_detailed = not self._is_detailed
        self.show_figures()

    def action_other_phase(self) -> None:
        """Switch the column that digits set."""
        self._phase = _PHASES[1 - _PHASES.index(self._phase)]
        self.show_figures()

    def action_leave(self) -> None:
        """Stop measuring or waiting, or go back to the chat if there is nothing to stop."""
        was_measuring = self._is_measuring or bool(self._pending_parts) or self._has_other_panel
        self._end_measuring()
        self.show_figures()
        if not was_measuring:
            self.app.switch_mode(CHAT)

    def _end_measuring(self) -> None:
        self._pending_parts = ()
        self._is_hasty = False
        self._race.end()
        self._battery.is_shown = False
        self._race_timer.pause()
        self._chat_session.stop_tuning()
