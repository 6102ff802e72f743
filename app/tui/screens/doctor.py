"""The doctor screen: findings about machine, terminal and open model, as `jalopy doctor` prints.

Readings from files are shown at once, measurements as soon as the engine thread is free.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from app.backend.status import Activity
from app.conversations.state_files import saved_bytes
from app.machine.doctor import report
from app.machine.doctor.examine import Examination
from app.machine.doctor.findings import BAD, LATER, OK, WEAK, Finding
from app.machine.doctor.host_system import read_host_system
from app.machine.doctor.readings import (
    Readings,
    StatesReadings,
    read_clock,
    read_cores,
    read_disk,
    read_memory,
    read_terminal,
)
from app.models.library import advice
from app.models.library.speed import ESTIMATE, speed_text
from app.program.background import in_background
from app.text import figures
from app.text.clean_text import clean_line
from app.text.glyphs import Glyphs, choose_glyphs
from app.tui.bindings import bindings
from app.tui.chat.screen import ChatScreen
from app.tui.drawing.lines import (
    EMPTY,
    Line,
    Span,
    SpanRole,
    apart,
    caution,
    joined,
    line,
    muted,
    strong,
)
from app.tui.drawing.panels import FRAME_COLUMNS, divided, panel, side_by_side
from app.tui.screens.figure_screen import FigureScreen
from app.tui.speed.writing_lines import absent_model_text
from app.tui.widgets.figure_lines import KeyLine, ScreenTitle
from app.tui.widgets.model_rows import speed_line
from app.tui.widgets.status_line import activity_word

_LEAST_COLUMNS = 30
_LEAST_TEXT_COLUMNS = 20
_TOPIC_COLUMNS = 14
TWO_COLUMNS_FROM = 100
_ROLES = {OK: SpanRole.GOOD, WEAK: SpanRole.CAUTION, BAD: SpanRole.TROUBLE}


class DoctorScreen(FigureScreen):
    """List of findings."""

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
        self._pending_readings: Future[Readings] | None = None
        self._pending_examination: Future[Examination] | None = None
        self._trouble = ""
        """Reason why nothing was measured; empty if there is none."""
        self._wants_unfolded: bool | None = None
        """Whether the user wants to see passed checks; None shows them if there is room."""
        self._is_unfolded = False
        """Whether passed checks are shown."""
        self._glyphs = choose_glyphs()

    def on_screen_resume(self) -> None:
        """Examine the machine, unless an examination is still running."""
        self._timer.resume()
        self.action_examine()

    def action_examine(self) -> None:
        """Start an examination, unless one is running."""
        if self._pending_examination is not None:
            return
        self._examination = None
        self._trouble = ""
        self._pending_examination = Future()
        if not self._engine_thread.examine(self._pending_examination):
            retry = self._keymap.hint("doctor.examine", "try again")
            self._trouble = ". ".join(filter(None, ("The engine is too busy", retry)))
            self._pending_examination = None
        self._pending_readings = in_background(self._read, "doctor")
        self._timer.resume()
        self.show_figures()

    def _read(self) -> Readings:
        """Read the machine in a background thread, since that watches the load for a moment."""
        model = self._chat_session.model
        columns_rows = (self.app.size.width, self.app.size.height)
        host = read_host_system(os.environ)
        return Readings(
            cores=read_cores(),
            clock=read_clock(),
            memory=read_memory(),
            terminal=read_terminal(os.environ, True, self.app.console.encoding, columns_rows),
            disk=read_disk(model.path, host) if model is not None else None,
            states=StatesReadings(saved_bytes(), self._settings.kv_states_quota_bytes),
            host=host,
            wanted_threads=self._settings.threads,
        )

    def poll(self) -> None:
        """Take readings and measurements when they are complete."""
        if self._pending_readings is not None and self._pending_readings.done():
            readings = self._pending_readings
            self._pending_readings = None
            if readings.exception() is None:
                self._readings = readings.result()
                self.show_figures()
        if self._pending_examination is not None and self._pending_examination.done():
            examination = self._pending_examination
            self._pending_examination = None
            if (error := examination.exception()) is None:
                self._examination = examination.result()
            else:
                self._trouble = clean_line(f"Not measured: {type(error).__name__}: {error}", 200)
            self.show_figures()
        if self._pending_readings is None and self._pending_examination is None:
            self._timer.pause()
        self._show_title()

    def action_unfold(self) -> None:
        """Show or hide passed checks."""
        self._wants_unfolded = not self._is_unfolded
        self.show_figures()

    @property
    def _offered_repository(self) -> str:
        """Repository of the recommended model; empty if there is none."""
        if self._examination is None or not self._examination.suggestions:
            return ""
        entry = report.first_choice(self._examination)
        if entry is None:
            return ""
        return entry.repository

    async def action_get(self) -> None:
        """Show the cost of the recommended model."""
        if repository := self._offered_repository:
            await self.app.run_action(f"app.get({repository!r})")

    def show_figures(self) -> None:
        """Show the findings so far."""
        if not self.is_mounted:
            return
        self._show_title()
        self._is_unfolded = self._wants_unfolded is not False
        if self._wants_unfolded is None and len(self._drawn(self.size.width)) > self.body_rows:
            self._is_unfolded = False
        key = self._keymap.first_key
        if self._is_unfolded:
            effect = "hide passed checks"
        else:
            effect = "show passed checks"
        keys = [(key("doctor.get"), "download")] if self._offered_repository else []
        keys += [
            (key("doctor.unfold"), effect),
            (key("doctor.examine"), "check again"),
            ("arrows", "scroll"),
            (key("doctor.leave"), "back"),
        ]
        self.query_one(KeyLine).set_content(keys)
        self.fill(self._drawn)

    def _show_title(self) -> None:
        model = self._chat_session.model
        if model is not None:
            context = f"{model.name} · {model.quantization or model.server}"
        else:
            context = absent_model_text(self._engine_thread.status)
        self.query_one(ScreenTitle).set_content(
            context, state_line(self._findings(), self._progress())
        )

    def _progress(self) -> str:
        if self._pending_examination is None:
            return self._trouble
        status = self._engine_thread.status
        if status.activity is Activity.COMPILING:
            return activity_word(status)
        if status.is_busy:
            return "waiting for the engine ..."
        return "measuring ..."

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
            return [(muted(" reading the machine ..."),)]
        width = max(_LEAST_COLUMNS, width)
        examination = self._examination
        if examination is None:
            return [*self._problem_cards(width), *self._passed_card(width)]

        has_two_columns = width >= TWO_COLUMNS_FROM
        left_width = right_width = width
        if has_two_columns:
            left_width, right_width = divided(width, 2)
        left = self._problem_cards(left_width)
        if examination.suggestions:
            get_hint = self._keymap.hint("doctor.get", "download")
            left = [*_suits_card(examination, get_hint, self._glyphs, left_width), *left]
        right = self._passed_card(right_width)
        if examination.needs is not None:
            kv_type = self._settings.kv_type_or_default
            right = [*_model_card(examination, kv_type, self._glyphs, right_width), *right]
        if not has_two_columns:
            return [*left, *right, *_memory_card(examination, self._glyphs, width)]
        # The table of sizes goes below the shorter column.
        if len(left) < len(right):
            left += _memory_card(examination, self._glyphs, left_width)
        else:
            right += _memory_card(examination, self._glyphs, right_width)
        return side_by_side([left, right], [left_width, right_width])

    def _problem_cards(self, width: int) -> list[Line]:
        problems = [finding for finding in self._findings() if finding.mark != OK]
        return [row for finding in problems for row in _problem_card(finding, self._glyphs, width)]

    def _passed_card(self, width: int) -> list[Line]:
        passed = [finding for finding in self._findings() if finding.mark == OK]
        unfold_hint = self._keymap.hint("doctor.unfold", "shows them")
        return _passed_card(passed, self._is_unfolded, unfold_hint, self._glyphs, width)


def _sign(finding: Finding, glyphs: Glyphs) -> Span:
    signs = {OK: glyphs.good, WEAK: glyphs.caution, BAD: glyphs.trouble}
    return Span(signs[finding.mark], _ROLES[finding.mark])


def _wrapped(text: str, width: int, role: SpanRole = SpanRole.PLAIN) -> list[Line]:
    columns = max(_LEAST_TEXT_COLUMNS, width)
    rows = textwrap.wrap(clean_line(text, 400), columns, break_on_hyphens=False)
    return [line(Span(row, role)) for row in rows]


def _problem_card(finding: Finding, glyphs: Glyphs, width: int) -> list[Line]:
    """Draw a problem: what was found, what it means and how to fix it."""
    inner = width - FRAME_COLUMNS
    body = [*_wrapped(finding.found, inner, SpanRole.STRONG), *_wrapped(finding.meaning, inner)]
    if finding.mend:
        arrow = f"{glyphs.arrow} "
        steps = _wrapped(finding.mend, inner - len(arrow), SpanRole.ACCENT)
        for index, step in enumerate(steps):
            indent = arrow if index == 0 else " " * len(arrow)
            body.append((Span(indent, SpanRole.ACCENT), *step))
    role = _ROLES[finding.mark]
    name = f"{_sign(finding, glyphs).text} {finding.topic}"
    return panel(name, body, width, glyphs, frame=role, name_role=role)


def _passed_card(
    passed: Sequence[Finding], is_unfolded: bool, unfold_hint: str, glyphs: Glyphs, width: int
) -> list[Line]:
    """Draw the passed checks: their number, or all of them if unfolded."""
    inner = width - FRAME_COLUMNS
    count = f"{figures.counted(len(passed), 'check')} passed"
    if is_unfolded:
        body = [row for finding in passed for row in _finding_lines(finding, inner, glyphs)]
        return panel(count, body, width, glyphs)
    spans = [Span(f"{glyphs.good} {count}", SpanRole.GOOD)]
    if unfold_hint:
        spans.append(muted(f"   {unfold_hint}"))
    return panel("", [line(*spans)], width, glyphs)


def _finding_lines(finding: Finding, width: int, glyphs: Glyphs) -> list[Line]:
    if finding.meaning:
        text = f"{finding.found}: {finding.meaning}"
    else:
        text = finding.found
    indent = _TOPIC_COLUMNS + 3
    rows = _wrapped(text, width - indent)
    head = (_sign(finding, glyphs), Span(f" {finding.topic:<{_TOPIC_COLUMNS}} ", SpanRole.MUTED))
    gap = Span(" " * indent)
    lines = []
    for index, row in enumerate(rows):
        start = head if index == 0 else (gap,)
        lines.append(joined((*start, *row)))
    if finding.mend:
        for row in _wrapped(finding.mend, width - indent - 3, SpanRole.ACCENT):
            lines.append((gap, Span(f"{glyphs.arrow} ", SpanRole.ACCENT), *row))
    return lines


def _suits_card(examination: Examination, get_hint: str, glyphs: Glyphs, width: int) -> list[Line]:
    """Draw the sizes of models that suit this machine, and the recommended model."""
    inner = width - FRAME_COLUMNS
    body = []
    for suggestion in examination.suggestions:
        name = f"  {suggestion.size:<6}{suggestion.quantization:<8}"
        sizes = f"{ESTIMATE}{figures.size(suggestion.file_bytes)}".rjust(6)
        speed = speed_line(suggestion.fit.decode_tps, inner - 24, glyphs)
        body.append((Span(name), muted(sizes), Span("  "), *speed))
    body += _first_choice_lines(examination, get_hint, glyphs, inner)
    note = line(muted(f"{figures.size(examination.memory.available_bytes)} free"))
    return panel("Models for this machine now", body, width, glyphs, note=note)


def _first_choice_lines(
    examination: Examination, get_hint: str, glyphs: Glyphs, width: int
) -> list[Line]:
    entry = report.first_choice(examination)
    if entry is None:
        return []
    mark = f"{glyphs.here} "
    size = f" {entry.quantization} {ESTIMATE}{figures.size(entry.download_bytes)}"
    name = line(Span(mark, SpanRole.WRITING), strong(entry.title), muted(size))
    speed = EMPTY
    if entry.outlook is not None and entry.outlook.decode_tps:
        speed = line(strong(speed_text(entry.outlook.decode_tps, entry.outlook.basis)))
    licence = f"licence {entry.licence}" if entry.licence else ""
    facts = glyphs.between.join(filter(None, (entry.good_at, get_hint, licence)))
    indent = Span(" " * len(mark))
    rows = _wrapped(facts, width - len(mark), SpanRole.MUTED)
    return [EMPTY, apart(name, speed, width), *((indent, *row) for row in rows)]


def _model_card(examination: Examination, kv_type: str, glyphs: Glyphs, width: int) -> list[Line]:
    """Draw whether the open model fits, and its estimated speed."""
    assert examination.needs is not None
    inner = width - FRAME_COLUMNS
    findings = report.fit_findings(examination, kv_type)
    body = [row for finding in findings for row in _finding_lines(finding, inner, glyphs)]
    note = line(muted(figures.size(examination.needs.weights_bytes)))
    return panel(report.fit_title(examination.needs), body, width, glyphs, note=note)


def _memory_card(examination: Examination, glyphs: Glyphs, width: int) -> list[Line]:
    """Draw the largest models by memory, with a mark at this machine's row."""
    body = []
    fitting_row = advice.row_for(examination.memory.total_bytes)
    for row in advice.memory_rows():
        text = f"{row.gib:>2} GB   {', '.join(row.best)}"
        if row is fitting_row:
            body.append((Span(f"{glyphs.here} ", SpanRole.WRITING), strong(text)))
        else:
            body.append((Span("  "), muted(text)))
    note = line(muted(f"{glyphs.here} fits in {figures.size(examination.memory.total_bytes)}"))
    return panel("Largest models by memory", body, width, glyphs, note=note)


def state_line(findings: Sequence[Finding], progress: str) -> Line:
    """Return what is going on, else how many findings can be mended."""
    if progress:
        return line(caution(progress))
    n_mendable = sum(finding.mark != OK and finding.mend not in ("", LATER) for finding in findings)
    if n_mendable:
        return line(caution(f"{n_mendable} to mend"))
    if any(finding.mark != OK for finding in findings):
        return line(muted("nothing to mend"))
    if findings:
        return line(Span("all checks passed", SpanRole.GOOD))
    return EMPTY
