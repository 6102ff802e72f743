"""Gauges: a share as a bar, parts of a whole in one bar, and what its parts mean."""

from __future__ import annotations

from collections.abc import Sequence

from app.text.glyphs import Glyphs
from app.tui.drawing.lines import Line, Role, Span, joined


def gauge(share: float, width: int, glyphs: Glyphs, role: Role = Role.ACCENT, empty: str | None = None) -> Line:
    """Draw a share of a whole; more than nothing fills at least half a cell. ``empty`` fills the rest."""
    halves = min(2 * width, max(1 if share > 0.002 else 0, round(2 * width * share)))
    filled = glyphs.gauge_full * (halves // 2) + glyphs.gauge_half * (halves % 2)
    rest = (glyphs.gauge_empty if empty is None else empty) * (width - len(filled))
    return joined((Span(filled, role), Span(rest, Role.UNFILLED)))


def cells_of(amounts: Sequence[float], width: int) -> list[int]:
    """Share out the cells of a bar: one at least for what is more than nothing, rounded at the largest part's cost."""
    total = sum(amounts)
    if total <= 0 or width < 1:
        return [0] * len(amounts)
    least = 1 if width >= 2 * len(amounts) else 0
    cells = [max(least, round(width * amount / total)) if amount > 0 else 0 for amount in amounts]
    while sum(cells) != width:
        largest = cells.index(max(cells))
        cells[largest] += 1 if sum(cells) < width else -1
    return cells


def stacked(parts: Sequence[tuple[float, Role]], width: int, glyphs: Glyphs) -> Line:
    """Draw parts of a whole in one bar; their heights tell them from each other where there is no colour."""
    cells = cells_of([amount for amount, _ in parts], width)
    return joined(
        Span(part_glyph(number, glyphs) * n, role)
        for number, (n, (_, role)) in enumerate(zip(cells, parts, strict=True))
    )


def part_glyph(number: int, glyphs: Glyphs) -> str:
    """Return what a part of a stacked bar is drawn with, for its legend."""
    return glyphs.parts[number % len(glyphs.parts)]
