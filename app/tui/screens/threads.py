"""The best threads and memory modes: measured on the loaded model after the conversation, applied
with one key."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import replace
from functools import partialmethod
from typing import TYPE_CHECKING, Any

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll

from app.backend.protocol import KV_TYPES, THREADS_AND_WEIGHTS
from app.machine.tuning.saved_tuning import best_choice, choice_to_remember
from app.machine.tuning.thread_bars import pinning_line, progress_text
from app.machine.tuning.threads_in_use import ThreadsInUse, describe_in_use
from app.program.settings import AUTO, DEFAULT_KV_TYPE
from app.program.state import TunedChoice
from app.session.events import ModelLoaded
from app.text import figures
from app.text.glyphs import choose_glyphs
from app.tui.actions import CHAT
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.lines import EMPTY, Line, Span, SpanRole, line, muted
from app.tui.drawing.panels import FRAME_COLUMNS, FRAME_ROWS, gauge, panel
from app.tui.screens.figure_screen import FigureScreen
from app.tui.widgets.figure_lines import FigureLines, KeyLine, ScreenTitle
from app.tui.widgets.thread_curve import LEAST_ROWS, ThreadCurve, n_rows, option_panels, room_lines

if TYPE_CHECKING:
    from app.machine.tuning.thread_bars import TuningReport

_PHASES = ("decode", "prefill")
_LEAST_COLUMNS = 20
_TALL_ROWS = 24
"""From this height on the screen shows before measuring what will be measured."""
_MOST_THICKNESS = 3
_WHAT_IS_MEASURED = (
    "Measuring tries each number of threads in turns, for writing and for reading, after the "
    "open conversation; then"
    " whether huge pages help, and how kernels should ask memory. It takes every core for a "
    "minute or two and can be"
    " stopped; nothing changes until you choose."
)


class ThreadsScreen(FigureScreen):
    """Measures when it is asked to; polls a record, and only while it is shown."""

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
        self._glyphs = choose_glyphs()
        self._phase = _PHASES[0]
        self._wants: tuple[str, ...] = ()
        """Parts of tuning to measure once the engine is free."""
        self._is_covered = False
        """Whether help or palette lie above it: what was wanted before is wanted after them."""
        self._model: ModelLoaded | None = None
        self._undo: list[ThreadsInUse] = []

    def compose(self) -> ComposeResult:
        """Lay out title, curves, options, reasons, state, progress and keys."""
        yield ScreenTitle("Threads", id="threads-title")
        with VerticalScroll(id="threads-body"):
            with Horizontal(id="thread-curves"):
                for phase in _PHASES:
                    yield ThreadCurve(phase, id=f"thread-{phase}")
            yield FigureLines("thread-reasons")
            yield FigureLines("thread-options")
            yield FigureLines("thread-room")
        yield FigureLines("thread-progress")
        yield KeyLine(id="thread-keys")

    def on_screen_resume(self) -> None:
        """Show what is known; measuring begins with a key, since it takes every core for a
        minute."""
        self._timer.resume()
        if not self._is_covered:
            self._wants = ()
        self._is_covered = False
        if self._model is not self._chat_session.model:
            self._model = self._chat_session.model
            self._undo.clear()
        self.show_figures()

    def on_screen_suspend(self) -> None:
        """Poll nothing while something else is shown."""
        self._is_covered = self.app.current_mode == "threads"
        self._watch.note_view(self, False)

    @property
    def _is_measuring(self) -> bool:
        """Whether a search runs; the chat learns of its end a moment after the report says so."""
        report = self._engine_thread.state.tuning
        return self._chat_session.is_tuning and (report is None or not report.is_over)

    # ---- what is shown

    def show_figures(self) -> None:
        """Show how things are; begin to measure once the engine is free."""
        if self._wants and self._chat_session.tune(self._wants):
            self._wants = ()
        report = self._engine_thread.state.tuning
        in_use = self._engine_thread.state.threads
        self.set_class(in_use is None, "-no-model")
        width = max(_LEAST_COLUMNS, self.query_one("#thread-curves").size.width or self.size.width)
        options: list[Line] = []
        if report is not None and in_use is not None:
            present = {"weights": in_use.now.weights, "kv": in_use.now.kv_type}
            options = option_panels(
                [(one, present[one.part]) for one in report.comparisons], self._glyphs, width
            )
        told = self._told(width)
        self._fill("thread-options", options)
        self._fill("thread-reasons", told)
        self._fill_room(width, len(options) + len(told))
        if self._is_measuring:
            state = line(Span("measuring", SpanRole.CAUTION))
        else:
            state = EMPTY
        self.query_one(ScreenTitle).tell(self._about(), state)
        self._fill("thread-progress", self._progress_lines())
        self.query_one(KeyLine).tell(self._keys())

    def _fill_room(self, width: int, taken: int) -> None:
        """Draw the curves, and below all else the machine; both get the rows that are left."""
        report = self._engine_thread.state.tuning
        in_use = self._engine_thread.state.threads
        is_tall = in_use is not None and self.size.height >= _TALL_ROWS
        if in_use is not None and is_tall:
            most = min(9, in_use.most)
        else:
            most = 0
        curves = [report.curve(phase) if report is not None else None for phase in _PHASES]
        room = self.query_one("#threads-body").outer_size.height - taken - FRAME_ROWS
        thicknesses = range(1, (_MOST_THICKNESS if is_tall else 1) + 1)
        taken_by = {n: max(n_rows(curve, most, n) for curve in curves) for n in thicknesses}
        thickness = max((n for n, rows in taken_by.items() if rows + LEAST_ROWS <= room), default=1)
        left = room - taken_by[thickness]
        for phase, widget, curve in zip(_PHASES, self.query(ThreadCurve), curves, strict=True):
            widget.display = in_use is not None
            if in_use is not None:
                other = self._keymap.hint("threads.other_phase", "the other column")
                words = filter(None, (f"1-{min(9, in_use.most)} set it", other))
                if phase == self._phase:
                    chooses = self._glyphs.between.join(words)
                else:
                    chooses = ""
                widget.tell(curve, getattr(in_use.now, phase), chooses, most, thickness)
        has_room = is_tall and left >= LEAST_ROWS
        self._watch.note_view(self, has_room)
        self._fill(
            "thread-room",
            room_lines(self._watch.look(), report, width, left, self._glyphs) if has_room else [],
        )

    def _fill(self, widget_id: str, lines: list[Line]) -> None:
        widget = self.query_one(f"#{widget_id}", FigureLines)
        widget.display = bool(lines)
        widget.fill(lines)

    def _about(self) -> str:
        model = self._chat_session.model
        report = self._engine_thread.state.tuning
        if model is not None:
            parts = [model.name, model.quantization]
        else:
            parts = []
        if report is not None:
            parts.append(f"context {figures.count(report.n_context)}")
        return self._glyphs.between.join(parts)

    @property
    def _server(self) -> str:
        """Who computes in place of this program; "" for no one."""
        if self._chat_session.model is not None:
            return self._chat_session.model.server
        return ""

    def _told(self, width: int) -> list[Line]:
        """Return what is in use, which changes by a key and must be seen in 24 rows, and why the
        winners won."""

        def told(title: str, texts: Iterable[str]) -> list[Line]:
            columns = max(_LEAST_COLUMNS, width - FRAME_COLUMNS)
            body = [line(part) for text in texts for part in textwrap.wrap(text, columns)]
            if body:
                return panel(title, body, width, self._glyphs)
            return []

        if self._engine_thread.state.threads is None:
            return told(
                "Computed elsewhere" if self._server else "No model is open", [self._state()]
            )
        if (report := self._engine_thread.state.tuning) is not None:
            why = told("Why", self._reasons(report))
        else:
            if self.size.height >= _TALL_ROWS:
                why = told("What will be measured", [_WHAT_IS_MEASURED])
            else:
                why = []
        return [*told("In use", [self._state()]), *why]

    def _reasons(self, report: TuningReport) -> list[str]:
        weights, kv = (report.comparison(part) for part in ("weights", "kv"))
        found = [kv.reason if kv is not None else "", *report.reasons, pinning_line(report)]
        found += [weights.reason if weights is not None else "", *report.notes]
        if not report.is_over and (cost := self._watch.pace.cost) is not None:
            found.append(f"The screen itself takes {100 * cost:.0f} % of one core meanwhile.")
        return found

    def _state(self) -> str:
        in_use = self._engine_thread.state.threads
        settings = self._chat.core.settings
        if self._server:
            return f"{self._server} computes: its threads are its own."
        if in_use is None:
            shown = self._keymap.key_or_command("app.models")
            return f"No model is loaded: {shown} in the chat shows which there are."
        overriding = {
            "threads": settings.threads or settings.prefill_threads,
            "weights": settings.weights != AUTO,
            "the KV cache's type": settings.kv_type != AUTO,
        }
        named = " and ".join(name for name, is_named in overriding.items() if is_named)
        text = f"{describe_in_use(in_use)}."
        if in_use.remembered is not None and named:
            text += f" The settings name {named}: they go before what is remembered."
        return text

    def _progress_lines(self) -> list[Line]:
        """Say how far the measuring is; the gauge follows rounds as well as time, whichever is
        further."""
        report = self._engine_thread.state.tuning
        text = self._progress()
        width = max(_LEAST_COLUMNS, self.size.width - 2)
        found = [line(Span(part, SpanRole.CAUTION)) for part in textwrap.wrap(text, width)]
        if not text or not self._is_measuring or report is None:
            return found
        if report.budget_s:
            share = report.elapsed_s / report.budget_s
        else:
            share = 0.0
        share = max(share, (report.round_number - 1) / report.n_rounds if report.n_rounds else 0.0)
        rest = "the conversation is untouched"
        cells = max(8, width - len(rest) - 2)
        return [*found, (*gauge(share, cells, self._glyphs, SpanRole.WRITING), muted(f"  {rest}"))]

    def _progress(self) -> str:
        report = self._engine_thread.state.tuning
        status = self._engine_thread.status
        if self._is_measuring and report is None:
            return "measuring begins"
        if (
            not self._is_measuring
            and self._chat_session.is_busy
            and not self._chat_session.is_tuning
        ):
            if status.rate_tps > 0:
                rate = f" at {figures.rate(status.rate_tps)} tok/s"
            else:
                rate = ""
            if self._wants:
                later = "; measuring begins when it is free"
            else:
                later = ""
            return f"the engine is {status.activity.value}{rate}{later}"
        if report is not None:
            return progress_text(report)
        return ""

    def _keys(self) -> list[tuple[str, str]]:
        key = self._keymap.first_key
        report = self._engine_thread.state.tuning
        in_use = self._engine_thread.state.threads
        if in_use is None:
            return [(key("threads.leave"), "back")]
        is_running = self._is_measuring
        keys = []
        if report is not None and _has_findings(report):
            best = _shown_choice(best_choice(report, in_use.now))
            keys.append((key("threads.apply_best"), f"use the best ({best})"))
        elif not is_running and not self._wants:
            keys.append((key("threads.apply_best"), "measures, for a minute or two"))
        keys += [
            (f"1-{min(9, in_use.most)}", "choose by hand"),
            (key("threads.other_phase"), "other column"),
        ]
        if self._undo:
            keys.append((key("threads.undo"), f"undo (was {_shown_choice(self._undo[-1].now)})"))
        if not is_running and report is not None and _has_findings(report):
            keys.append((key("threads.measure"), "measure again"))
        if not is_running:
            keys.append((key("threads.measure_kv"), "KV types"))
        return [*keys, (key("threads.leave"), "stop" if is_running else "back")]

    # ---- what the user asks for

    def action_apply_best(self) -> None:
        """Use and remember the best of what was measured; measure where nothing was."""
        report = self._engine_thread.state.tuning
        in_use = self._engine_thread.state.threads
        if in_use is None:
            return
        if report is None or not _has_findings(report):
            if not self._is_measuring:
                self.action_measure()
            return
        is_truth = not (report.is_over and self._engine_thread.state.tuning_conditions.is_swapping)
        best = (
            choice_to_remember(report, in_use.now, in_use.remembered)
            if is_truth
            else in_use.remembered
        )
        self._choose(best_choice(report, in_use.now), best)

    def on_key(self, event: events.Key) -> None:
        """Choose a count by its digit, for the column that is marked."""
        in_use = self._engine_thread.state.threads
        if in_use is not None and event.key in "123456789" and int(event.key) <= in_use.most:
            event.stop()
            chosen: dict[str, Any] = {self._phase: int(event.key)}
            choice = replace(in_use.now, **chosen)
            before = in_use.remembered or TunedChoice(1, 1)
            self._choose(choice, replace(choice, weights=before.weights, kv_type=before.kv_type))

    def action_undo(self) -> None:
        """Bring back what held before the last choice, remembered or not."""
        if self._undo:
            self._end_measuring()
            self._engine_thread.request_threads(self._undo.pop())
            self.show_figures()

    def action_measure_kv(self) -> None:
        """Compare types of the KV cache, with the best threads; measure those first if they are not
        known."""
        report = self._engine_thread.state.tuning
        has_curves = report is not None and bool(report.curves)
        self._measure(KV_TYPES if has_curves else THREADS_AND_WEIGHTS + KV_TYPES)

    def _measure(self, parts: tuple[str, ...]) -> None:
        if self._is_measuring:
            self._wants = ()
        else:
            self._wants = parts
        self.show_figures()

    action_measure = partialmethod(_measure, THREADS_AND_WEIGHTS)

    def action_other_phase(self) -> None:
        """Let digits choose for the other column."""
        self._phase = _PHASES[1 - _PHASES.index(self._phase)]
        self.show_figures()

    def action_leave(self) -> None:
        """Stop what is measured; with nothing to stop, go back."""
        was_measuring = self._is_measuring
        self._end_measuring()
        if not was_measuring:
            self.app.switch_mode(CHAT)

    def _end_measuring(self) -> None:
        self._wants = ()
        self._chat_session.stop_tuning()

    def _choose(self, choice: TunedChoice, remembered: TunedChoice | None) -> None:
        """Use and remember something else; the engine follows between two steps, and what is shown
        follows it."""
        self._end_measuring()
        before = self._engine_thread.state.threads
        if before is None:
            return
        # A cache keeps its type: another one is only remembered.
        wanted = ThreadsInUse(replace(choice, kv_type=before.now.kv_type), remembered, before.most)
        if wanted != before:
            self._undo.append(before)
            self._engine_thread.request_threads(wanted)


def _has_findings(report: TuningReport) -> bool:
    return bool(report.curves or any(found.is_measured for found in report.comparisons))


def _shown_choice(choice: TunedChoice) -> str:
    if choice.weights == "huge":
        huge = ", huge pages"
    else:
        huge = ""
    if choice.kv_type not in ("", DEFAULT_KV_TYPE):
        kv = f", {choice.kv_type}"
    else:
        kv = ""
    return f"{choice.decode}, {choice.prefill}{huge}{kv}"
