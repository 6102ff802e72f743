"""The doctor: findings about machine, terminal and the loaded model, as `jalopy doctor` prints
them.

What is read from files comes at once; what is measured comes when the engine's thread is free.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from app.backend.status import Activity
from app.machine.doctor import report
from app.machine.doctor.examine import Examination
from app.machine.doctor.findings import BAD, OK, WEAK, Finding
from app.machine.doctor.readings import (
    Readings,
    read_clock,
    read_cores,
    read_disk,
    read_memory,
    read_terminal,
)
from app.models.library import advice
from app.program.background import in_background
from app.text import figures
from app.text.clean_text import clean_line
from app.text.glyphs import Glyphs, choose_glyphs
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.lines import EMPTY, Line, Span, SpanRole, caution, joined, line, muted, strong
from app.tui.drawing.panels import FRAME_COLUMNS, divided, panel, side_by_side
from app.tui.screens.figure_screen import FigureScreen
from app.tui.widgets.figure_lines import KeyLine, ScreenTitle
from app.tui.widgets.model_rows import speed_line
from app.tui.widgets.status_line import activity_word

_LEAST_COLUMNS = 30
_LEAST_TEXT_COLUMNS = 20
_TOPIC_COLUMNS = 14
TWO_COLUMNS_FROM = 100
_ROLES = {OK: SpanRole.GOOD, WEAK: SpanRole.CAUTION, BAD: SpanRole.TROUBLE}


class DoctorScreen(FigureScreen):
    """Lists findings; examines again on a key."""

    BINDINGS = bindings("doctor")
    TITLE = "Doctor"
    PERIOD_S = 0.3

    def __init__(self, chat: ChatScreen) -> None:
        super().__init__()
        self._settings = chat.core.settings
        self._keymap = chat.core.keymap
        self._engine_thread = chat.core.engine_thread
        self._chat_session = chat.core.chat_session
        self._readings: Readings | None = None
        self._examination: Examination | None = None
        self._reading: Future[Readings] | None = None
        self._answer: Future[Examination] | None = None
        self._trouble = ""
        self._wants_unfolded: bool | None = None
        """Whether the user wants what is well listed; None lists it where all of it has room."""
        self._is_unfolded = False
        self._glyphs = choose_glyphs()

    def on_screen_resume(self) -> None:
        """Look at the machine as it is now, or go on waiting for the engine."""
        self._timer.resume()
        self.action_examine()

    def action_examine(self) -> None:
        """Look again, at everything, unless that is being done."""
        if self._answer is not None:
            return
        self._examination = None
        self._trouble = ""
        self._answer = Future()
        if not self._engine_thread.examine(self._answer):
            again = self._keymap.hint("doctor.examine", "tries again")
            self._trouble = "; ".join(filter(None, ("the engine has too much to do", again)))
            self._answer = None
        self._reading = in_background(self._read, "doctor")
        self._timer.resume()
        self.show_figures()

    def _read(self) -> Readings:
        """Read the machine, away from the screen's thread: it watches the load for a moment."""
        model = self._chat_session.model
        columns_rows = (self.app.size.width, self.app.size.height)
        return Readings(
            cores=read_cores(),
            clock=read_clock(),
            memory=read_memory(),
            terminal=read_terminal(os.environ, True, self.app.console.encoding, columns_rows),
            disk=read_disk(model.path) if model is not None else None,
            wanted_threads=self._settings.threads,
        )

    def look(self) -> None:
        """Take the readings and the engine's answer once they are there."""
        if self._reading is not None and self._reading.done():
            reading = self._reading
            self._reading = None
            if reading.exception() is None:
                self._readings = reading.result()
                self.show_figures()
        if self._answer is not None and self._answer.done():
            answer = self._answer
            self._answer = None
            if (error := answer.exception()) is None:
                self._examination = answer.result()
            else:
                self._trouble = clean_line(f"not measured: {type(error).__name__}: {error}", 200)
            self.show_figures()
        if self._reading is None and self._answer is None:
            self._timer.pause()
        self._show_title()

    def action_unfold(self) -> None:
        """Show or hide what is well."""
        self._wants_unfolded = not self._is_unfolded
        self.show_figures()

    def show_figures(self) -> None:
        """Show what was found so far."""
        if not self.is_mounted:
            return
        self._show_title()
        self._is_unfolded = self._wants_unfolded is not False
        if self._wants_unfolded is None and len(self._drawn(self.size.width)) > self.room:
            self._is_unfolded = False
        key = self._keymap.first_key
        if self._is_unfolded:
            words = "hides what is fine"
        else:
            words = "shows what is fine"
        keys = [
            (key("doctor.unfold"), words),
            (key("doctor.examine"), "examines again"),
            ("arrows", "scroll"),
        ]
        self.query_one(KeyLine).tell([*keys, (key("doctor.leave"), "back")])
        self.fill(self._drawn)

    def _show_title(self) -> None:
        model = self._chat_session.model
        if model is not None:
            about = f"{model.name} · {model.quantization or model.server}"
        else:
            about = "no model is open"
        self.query_one(ScreenTitle).tell(about, state_line(self._findings(), self._progress()))

    def _progress(self) -> str:
        if self._answer is None:
            return self._trouble
        status = self._engine_thread.status
        if status.activity is Activity.COMPILING:
            return f"{activity_word(status)} for this CPU (once)"
        return f"{'waiting for the engine' if status.is_busy else 'measuring'} ..."

    def _findings(self) -> list[Finding]:
        if self._readings is None:
            return []
        if self._examination:
            engine = self._examination.engine
        else:
            engine = None
        return report.all_findings(replace(self._readings, engine=engine))

    def _drawn(self, width: int) -> list[Line]:
        if self._readings is None:
            return [(muted(" looking around ..."),)]
        unfold = self._keymap.hint("doctor.unfold", "shows them")
        kv_type = self._settings.kv_type_or_default
        findings = self._findings()
        found = self._examination
        glyphs = self._glyphs
        width = max(_LEAST_COLUMNS, width)
        has_two_columns = found is not None and width >= TWO_COLUMNS_FROM
        if has_two_columns:
            first, second = divided(width, 2)
        else:
            first, second = (width, width)
        mends = [
            one
            for finding in findings
            if finding.mark != OK
            for one in _mend_card(finding, glyphs, first)
        ]
        well = [finding for finding in findings if finding.mark == OK]
        fine = _fine_card(well, self._is_unfolded, unfold, glyphs, second)
        if found is None:
            return [*mends, *fine]
        if found.suggestions:
            suits = _suits_card(found, glyphs, first)
        else:
            suits = []
        if found.needs is not None:
            model = _model_card(found, kv_type, glyphs, second)
        else:
            model = []
        left = [*suits, *mends]
        right = [*model, *fine, *_memory_card(found, glyphs, second)]
        if has_two_columns:
            return side_by_side([left, right], [first, second])
        return [*left, *right]


def _sign(finding: Finding, glyphs: Glyphs) -> Span:
    signs = {OK: glyphs.good, WEAK: glyphs.caution, BAD: glyphs.trouble}
    return Span(signs[finding.mark], _ROLES[finding.mark])


def _wrapped(text: str, width: int, role: SpanRole = SpanRole.PLAIN) -> list[Line]:
    parts = textwrap.wrap(
        clean_line(text, 400), max(_LEAST_TEXT_COLUMNS, width), break_on_hyphens=False
    )
    return [line(Span(part, role)) for part in parts]


def _mend_card(finding: Finding, glyphs: Glyphs, width: int) -> list[Line]:
    """Draw one thing to be mended: what it is, what it means, what to do."""
    inner = width - FRAME_COLUMNS
    body = [*_wrapped(finding.found, inner, SpanRole.STRONG), *_wrapped(finding.meaning, inner)]
    if finding.mend:
        arrow = f"{glyphs.arrow} "
        steps = _wrapped(finding.mend, inner - len(arrow), SpanRole.ACCENT)
        leads = [arrow, *[" " * len(arrow)] * (len(steps) - 1)]
        body += [
            (Span(lead, SpanRole.ACCENT), *one) for lead, one in zip(leads, steps, strict=False)
        ]
    role = _ROLES[finding.mark]
    name = f"{_sign(finding, glyphs).text} {finding.topic}"
    return panel(name, body, width, glyphs, frame=role, name_role=role)


def _fine_card(
    well: Sequence[Finding], is_unfolded: bool, unfold: str, glyphs: Glyphs, width: int
) -> list[Line]:
    """Draw what is well: how many, or each."""
    inner = width - FRAME_COLUMNS
    count = f"{figures.counted(len(well), 'check')} {'is' if len(well) == 1 else 'are'} fine"
    if not is_unfolded:
        body = [
            line(
                Span(f"{glyphs.good} {count}", SpanRole.GOOD),
                muted(f"   {unfold}" if unfold else ""),
            )
        ]
        return panel("", body, width, glyphs)
    body = [one for finding in well for one in _finding_lines(finding, inner, glyphs)]
    return panel(count, body, width, glyphs)


def _finding_lines(finding: Finding, width: int, glyphs: Glyphs) -> list[Line]:
    if finding.meaning:
        text = f"{finding.found}: {finding.meaning}"
    else:
        text = finding.found
    indent = _TOPIC_COLUMNS + 3
    rows = _wrapped(text, width - indent)
    head = (_sign(finding, glyphs), Span(f" {finding.topic:<{_TOPIC_COLUMNS}} ", SpanRole.MUTED))
    gap = Span(" " * indent)
    found = [joined((*(head if not number else (gap,)), *one)) for number, one in enumerate(rows)]
    for one in _wrapped(finding.mend, width - indent - 3, SpanRole.ACCENT) if finding.mend else []:
        found.append((gap, Span(f"{glyphs.arrow} ", SpanRole.ACCENT), *one))
    return found


def _suits_card(found: Examination, glyphs: Glyphs, width: int) -> list[Line]:
    """Draw the sizes of models that suit this machine, the advised one marked."""
    inner = width - FRAME_COLUMNS
    body = []
    best = advice.best_suggestion(found.suggestions)
    for one in found.suggestions:
        is_best = one is best
        name = f"{one.size:<6}{one.quantization:<8}"
        sizes = f"{figures.size(one.file_bytes):>6}"
        mark = Span(f"{glyphs.here} " if is_best else "  ", SpanRole.WRITING)
        row = (mark, strong(name) if is_best else Span(name), muted(sizes), Span("  "))
        body.append((*row, *speed_line(one.fit.decode_tps, inner - 24, glyphs)))
    for text in report.known_lines(found):
        if len(text) <= inner:
            body += [line(muted(text[:inner]))]
        else:
            body += _wrapped(text, inner, SpanRole.MUTED)
    note = line(muted(f"{figures.size(found.memory.available_bytes)} free"))
    return panel("What suits this machine now", body, width, glyphs, note=note)


def _model_card(found: Examination, kv_type: str, glyphs: Glyphs, width: int) -> list[Line]:
    """Draw whether the open model fits, and how fast it would be."""
    assert found.needs is not None
    inner = width - FRAME_COLUMNS
    findings = report.fit_findings(found, kv_type)
    body = [one for finding in findings for one in _finding_lines(finding, inner, glyphs)]
    note = line(muted(figures.size(found.needs.weights_bytes)))
    return panel(report.fit_title(found.needs), body, width, glyphs, note=note)


def _memory_card(found: Examination, glyphs: Glyphs, width: int) -> list[Line]:
    """Draw the largest models by memory, this machine's row marked."""
    body = []
    here = advice.row_for(found.memory.total_bytes)
    for row in advice.memory_rows():
        is_here = row is here
        text = f"{row.gib:>2} GB   {', '.join(row.best)}"
        mark = Span(f"{glyphs.here} " if is_here else "  ", SpanRole.WRITING)
        body.append((mark, strong(text) if is_here else muted(text)))
    note = line(muted(f"{glyphs.here} fits in {figures.size(found.memory.total_bytes)}"))
    return panel("Largest models by memory", body, width, glyphs, note=note)


def state_line(findings: Sequence[Finding], progress: str) -> Line:
    """Say how much there is to mend, or what is going on."""
    if progress:
        return line(caution(progress))
    n_bad = sum(finding.mark != OK for finding in findings)
    if findings:
        return line(caution(f"{n_bad} to mend") if n_bad else Span("all is well", SpanRole.GOOD))
    return EMPTY
