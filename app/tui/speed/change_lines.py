"""Words for changes of threads and memory: marks on the curve, and the comparison below it."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

from app.machine.sensors.tuning_conditions import QUIET_CORES
from app.machine.tuning.threads_in_use import ChoiceChange
from app.program.state import TunedChoice
from app.text import figures
from app.text.figures import counted
from app.text.glyphs import Glyphs
from app.tui.drawing.graph import GraphMark
from app.tui.drawing.lines import Line, Span, SpanRole, line
from app.tui.speed.watch import PerformanceView

_MOST_ROWS = 2


def change_marks(changes: Iterable[tuple[float, ChoiceChange]]) -> tuple[GraphMark, ...]:
    """Return marks for changes at seconds of a reply."""
    marks = []
    for second, change in changes:
        words = []
        if change.after.decode != change.before.decode:
            words.append(counted(change.after.decode, "thread"))
        if change.after.weights != change.before.weights:
            words.append(_weights_name(change.after))
        if change.after.pinned != change.before.pinned:
            words.append(_pinning(change.after))
        marks.append(GraphMark(second, ", ".join(words)))
    return tuple(marks)


def comparison_text(view: PerformanceView, glyphs: Glyphs) -> str:
    """Return a sentence that compares the choices of a reply; "" if nothing was changed."""
    comparison = view.comparison
    if comparison is None:
        return ""
    from app.machine.tuning.speed_comparison import LEAST_TOKENS, Verdict

    first, second = comparison.speeds
    names = choice_names(first.choice, second.choice)
    if comparison.verdict is Verdict.TOO_FEW:
        if first.n_tokens < LEAST_TOKENS:
            return f"{names[0]}: only {counted(first.n_tokens, 'token')}, too few to compare"
        if not view.status.is_busy:
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


def choice_names(choice: TunedChoice, other: TunedChoice) -> tuple[str, str]:
    """Return short names of two choices, by what they differ in for writing."""
    names: tuple[list[str], list[str]] = ([], [])
    for words, named in zip(names, (choice, other), strict=True):
        if choice.decode != other.decode:
            words.append(counted(named.decode, "thread"))
        if choice.weights != other.weights:
            words.append(_weights_name(named))
        if choice.pinned != other.pinned:
            words.append(_pinning(named))
    first, second = (" + ".join(words) for words in names)
    return first, second


def _weights_name(choice: TunedChoice) -> str:
    return "huge pages" if choice.weights == "huge" else "mapped file"


def _pinning(choice: TunedChoice) -> str:
    if choice.pinned:
        return "pinned"
    return "not pinned"


def change_lines(view: PerformanceView, note: str, width: int, glyphs: Glyphs) -> list[Line]:
    """Return what the last key did or why it did nothing, or else the comparison of the reply.

    Args:
        note: words on the last key; "" if they need not be shown any more.
    """
    text = note or comparison_text(view, glyphs)
    role = SpanRole.CAUTION if note else SpanRole.STRONG
    return [line(Span(row, role)) for row in wrap(text, max(1, width))[:_MOST_ROWS]]
