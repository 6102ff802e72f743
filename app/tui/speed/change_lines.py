"""Words for changes of threads and memory: marks on the curve, and the comparison below it."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap
from typing import TYPE_CHECKING

from app.machine.sensors.tuning_conditions import QUIET_CORES
from app.machine.tuning.threads_in_use import ChoiceChange, choice_names
from app.text import figures
from app.text.figures import counted
from app.text.glyphs import Glyphs
from app.tui.drawing.graph import GraphMark
from app.tui.drawing.lines import Line, Span, SpanRole, line
from app.tui.speed.watch import PerformanceView

if TYPE_CHECKING:
    from app.machine.tuning.speed_comparison import SpeedComparison

_MOST_ROWS = 2


def change_marks(changes: Iterable[tuple[float, ChoiceChange]]) -> tuple[GraphMark, ...]:
    """Return marks for changes at seconds of a reply."""
    marks = []
    for second, change in changes:
        _, name = choice_names(change.before, change.after)
        marks.append(GraphMark(second, name.replace(" + ", ", ")))
    return tuple(marks)


def comparison_text(comparison: SpeedComparison, is_writing: bool, glyphs: Glyphs) -> str:
    """Return a sentence that compares two choices.

    Args:
        is_writing: whether more tokens are to come.
    """
    from app.machine.tuning.speed_comparison import LEAST_TOKENS, Verdict

    first, second = comparison.speeds
    names = choice_names(first.choice, second.choice)
    if comparison.verdict is Verdict.TOO_FEW:
        if first.n_tokens < LEAST_TOKENS:
            return f"{names[0]}: only {counted(first.n_tokens, 'token')}, too few to compare"
        if not is_writing:
            return f"{names[1]}: only {counted(second.n_tokens, 'token')}, too few to compare"
        return f"{names[1]}: {second.n_tokens} of {LEAST_TOKENS} tokens, then the comparison"

    rates = []
    for name, speed in zip(names, comparison.speeds, strict=True):
        rate = figures.rate(speed.tps)
        decimals = len(rate.partition(".")[2])
        rates.append(f"{name}: {rate} {glyphs.plus_minus}{speed.half_width_tps:.{decimals}f}")
    text = f"{', '.join(rates)} tok/s: "
    if comparison.others_cores > QUIET_CORES:
        return f"{text}not certain, other programs used {comparison.others_cores:.1f} cores"
    match comparison.verdict:
        case Verdict.FASTER:
            return f"{text}{comparison.ratio:.2f} times as fast"
        case Verdict.EQUAL:
            return f"{text}no difference that counts"
    if comparison.is_final:
        return f"{text}too close to call"
    return f"{text}too close to call yet"


def change_lines(view: PerformanceView, note: str, width: int, glyphs: Glyphs) -> list[Line]:
    """Return what the last key did or why it did nothing, or else the comparison of the reply.

    Args:
        note: words on the last key; "" if they need not be shown any more.
    """
    text = note
    if not text and view.comparison is not None:
        text = comparison_text(view.comparison, view.status.is_busy, glyphs)
    role = SpanRole.CAUTION if note else SpanRole.STRONG
    return [line(Span(row, role)) for row in wrap(text, max(1, width))[:_MOST_ROWS]]
