"""Ways to keep weights, or keys and values, in memory as lines of plain text, for the command line and the screen.

Takes an ``engine.tuning.report.Comparison`` and imports no engine. Gains are over the way in use when it was measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.text import figures
from app.text.glyphs import Glyphs
from app.tuning.thread_bars import BarLine, Role

if TYPE_CHECKING:
    from engine.tuning.report import Comparison as Comparison
    from engine.tuning.report import Option

_PHASES = ("decode", "prefill")
_CELL = 19
"""Columns of a phase: rate, spread and gain."""


def option_lines(comparison: Comparison, in_use: str, glyphs: Glyphs) -> list[BarLine]:
    """Draw one comparison: heading, what it takes, and a line for each way that was measured.

    Args:
        in_use: the way in use, marked.
    """
    lines = [BarLine(f" {_title(comparison):<9}{'writing':<{_CELL}}{'reading, tok/s':<{_CELL}}".rstrip(), Role.HEADING)]
    if not any(option.tps for option in comparison.options):
        return [*lines, BarLine(f"   {comparison.left_out or comparison.estimate}", Role.PLAIN)]
    lines += [_option_line(option, comparison, in_use, glyphs) for option in comparison.options]
    if comparison.left_out:
        lines.append(BarLine(f"   {comparison.left_out}", Role.PLAIN))
    return lines


def _title(comparison: Comparison) -> str:
    return "weights" if comparison.part == "weights" else "KV cache"


def _option_line(option: Option, comparison: Comparison, in_use: str, glyphs: Glyphs) -> BarLine:
    mark = glyphs.here if option.name == in_use else " "
    is_best = option.name == comparison.best and comparison.is_measured
    cells = "".join(f"{_cell(option, phase, glyphs):<{_CELL}}" for phase in _PHASES)
    text = f"{mark} {option.name:<8}{cells}{'best' if is_best else ''}"
    return BarLine(text.rstrip(), Role.BEST if is_best else Role.PLAIN)


def _cell(option: Option, phase: str, glyphs: Glyphs) -> str:
    tps, gain = option.tps.get(phase), option.gain.get(phase)
    if tps is None:
        return "-"
    median = figures.rate(tps.median)
    decimals = len(median.partition(".")[2])
    shown = f"{median:>5} {glyphs.plus_minus}{tps.half_width:.{decimals}f}"
    return f"{shown:<11} {100 * (gain.median - 1):+.0f} %" if gain is not None else shown
