"""The doctor's findings as cards: models that suit this machine, problems, the open model, and checks that passed."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from app.doctor import report
from app.doctor.examine import Examination
from app.doctor.findings import BAD, OK, WEAK, Finding
from app.library import advice
from app.text import figures
from app.text.clean_text import clean_line
from app.text.glyphs import Glyphs
from app.tui.drawing.lines import EMPTY, Line, Role, Span, caution, joined, line, muted, strong
from app.tui.drawing.panels import FRAME_COLUMNS, beside, divided, panel
from app.tui.widgets.model_rows import speed_line

TWO_COLUMNS_FROM = 100
_ROLES = {OK: Role.GOOD, WEAK: Role.CAUTION, BAD: Role.TROUBLE}
_TOPIC_COLUMNS = 14
_LEAST_TEXT_COLUMNS = 20

Card = Callable[[int], list[Line]]
"""Draws itself in a width."""


def cards(
    findings: Sequence[Finding], found: Examination | None, kv_type: str, is_unfolded: bool, unfold: str, glyphs: Glyphs
) -> tuple[list[Card], list[Card]]:
    """Return the cards of two columns: ``unfold`` is the key that lists what is well; nothing is found at first."""
    well = [finding for finding in findings if finding.mark == OK]
    mends = [_mend_card(finding, glyphs) for finding in findings if finding.mark != OK]
    fine = _fine_card(well, is_unfolded, unfold, glyphs)
    if found is None:
        return [*mends, fine], []
    suits = [_suits_card(found, glyphs)] if found.suggestions else []
    model = [_model_card(found, kv_type, glyphs)] if found.needs is not None else []
    return [*suits, *mends], [*model, fine, _memory_card(found, glyphs)]


def drawn(columns: tuple[list[Card], list[Card]], width: int) -> list[Line]:
    """Draw the cards side by side, or below each other."""
    if width < TWO_COLUMNS_FROM or not columns[1]:
        return [one for column in columns for card in column for one in card(width)]
    widths = divided(width, 2)
    blocks = [[one for card in column for one in card(each)] for column, each in zip(columns, widths, strict=True)]
    return beside(blocks, widths)


def _sign(finding: Finding, glyphs: Glyphs) -> Span:
    signs = {OK: glyphs.good, WEAK: glyphs.caution, BAD: glyphs.trouble}
    return Span(signs[finding.mark], _ROLES[finding.mark])


def _wrapped(text: str, width: int, role: Role = Role.PLAIN) -> list[Line]:
    parts = textwrap.wrap(clean_line(text, 400), max(_LEAST_TEXT_COLUMNS, width), break_on_hyphens=False)
    return [line(Span(part, role)) for part in parts]


def _mend_card(finding: Finding, glyphs: Glyphs) -> Card:
    """Draw one thing to be mended: what it is, what it means, what to do."""

    def draw(width: int) -> list[Line]:
        inner = width - FRAME_COLUMNS
        body = [*_wrapped(finding.found, inner, Role.STRONG), *_wrapped(finding.meaning, inner)]
        if finding.mend:
            arrow = f"{glyphs.arrow} "
            steps = _wrapped(finding.mend, inner - len(arrow), Role.ACCENT)
            leads = [arrow, *[" " * len(arrow)] * (len(steps) - 1)]
            body += [(Span(lead, Role.ACCENT), *one) for lead, one in zip(leads, steps, strict=False)]
        role = _ROLES[finding.mark]
        name = f"{_sign(finding, glyphs).text} {finding.topic}"
        return panel(name, body, width, glyphs, frame=role, name_role=role)

    return draw


def _fine_card(well: Sequence[Finding], is_unfolded: bool, unfold: str, glyphs: Glyphs) -> Card:
    """Draw what is well: how many, or each."""

    def draw(width: int) -> list[Line]:
        inner = width - FRAME_COLUMNS
        count = f"{figures.counted(len(well), 'check')} {'is' if len(well) == 1 else 'are'} fine"
        if not is_unfolded:
            body = [line(Span(f"{glyphs.good} {count}", Role.GOOD), muted(f"   {unfold}" if unfold else ""))]
            return panel("", body, width, glyphs)
        body = [one for finding in well for one in _finding_lines(finding, inner, glyphs)]
        return panel(count, body, width, glyphs)

    return draw


def _finding_lines(finding: Finding, width: int, glyphs: Glyphs) -> list[Line]:
    text = f"{finding.found}: {finding.meaning}" if finding.meaning else finding.found
    indent = _TOPIC_COLUMNS + 3
    rows = _wrapped(text, width - indent)
    head = (_sign(finding, glyphs), Span(f" {finding.topic:<{_TOPIC_COLUMNS}} ", Role.MUTED))
    gap = Span(" " * indent)
    found = [joined((*(head if not number else (gap,)), *one)) for number, one in enumerate(rows)]
    for one in _wrapped(finding.mend, width - indent - 3, Role.ACCENT) if finding.mend else []:
        found.append((gap, Span(f"{glyphs.arrow} ", Role.ACCENT), *one))
    return found


def _suits_card(found: Examination, glyphs: Glyphs) -> Card:
    """Draw the sizes of models that suit this machine, the advised one marked."""

    def draw(width: int) -> list[Line]:
        inner = width - FRAME_COLUMNS
        body = []
        for one in found.suggestions:
            is_best = one is found.best
            name = f"{one.size:<6}{one.quantization:<8}"
            sizes = f"{figures.size(one.file_bytes):>6}"
            mark = Span(f"{glyphs.here} " if is_best else "  ", Role.WRITING)
            row = (mark, strong(name) if is_best else Span(name), muted(sizes), Span("  "))
            body.append((*row, *speed_line(one.fit.decode_tps, inner - 24, glyphs)))
        for text in report.known_lines(found):
            body += [line(muted(text[:inner]))] if len(text) <= inner else _wrapped(text, inner, Role.MUTED)
        note = line(muted(f"{figures.size(found.memory.available_bytes)} free"))
        return panel("What suits this machine now", body, width, glyphs, note=note)

    return draw


def _model_card(found: Examination, kv_type: str, glyphs: Glyphs) -> Card:
    """Draw whether the open model fits, and how fast it would be."""

    def draw(width: int) -> list[Line]:
        assert found.needs is not None
        inner = width - FRAME_COLUMNS
        findings = report.fit_findings(found, kv_type)
        body = [one for finding in findings for one in _finding_lines(finding, inner, glyphs)]
        note = line(muted(figures.size(found.needs.weights_bytes)))
        return panel(report.fit_title(found.needs), body, width, glyphs, note=note)

    return draw


def _memory_card(found: Examination, glyphs: Glyphs) -> Card:
    """Draw the largest models by memory, this machine's row marked."""

    def draw(width: int) -> list[Line]:
        body = []
        for row in advice.memory_rows():
            is_here = row is found.memory_row
            text = f"{row.gib:>2} GB   {', '.join(row.best)}"
            mark = Span(f"{glyphs.here} " if is_here else "  ", Role.WRITING)
            body.append((mark, strong(text) if is_here else muted(text)))
        note = line(muted(f"{glyphs.here} fits in {figures.size(found.memory.total_bytes)}"))
        return panel("Largest models by memory", body, width, glyphs, note=note)

    return draw


def state_line(findings: Sequence[Finding], progress: str) -> Line:
    """Say how much there is to mend, or what is going on."""
    if progress:
        return line(caution(progress))
    n_bad = sum(finding.mark != OK for finding in findings)
    return line(caution(f"{n_bad} to mend") if n_bad else Span("all is well", Role.GOOD)) if findings else EMPTY
