"""Characters for bars and graphs, plain ones where a terminal lacks them, and whether it is a plain
console.

A console has few glyphs, 16 colours and no clipboard. It is recognised by ``TERM``, or named by
``--tty``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from app.text.record import record

_SWITCH = "JALOPY_CONSOLE"


def is_console(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to draw for a console: Linux's own, or what the user says is one."""
    return environ.get("TERM") == "linux" or bool(environ.get(_SWITCH))


def choose_console() -> None:
    """Draw for a console whatever the terminal says it is."""
    os.environ[_SWITCH] = "1"


@record
class Glyphs:
    """One alphabet for drawing."""

    levels: str
    """From empty to full, for the heights of a graph."""
    full: str
    empty: str
    gauge_full: str
    gauge_half: str
    """Half a cell of a gauge; "" where there is none."""
    gauge_empty: str
    upright: str
    """The part of a scroll bar that is in sight."""
    frame: str
    """Upper left, upper right, lower left and lower right corner, level and upright line."""
    halves: str
    """Both halves of a cell, the upper one, the lower one; "" where there are none."""
    has_braille: bool
    line: str
    mark: str
    """Points up at something."""
    limit: str
    median: str
    parts: str
    """Heights that tell the parts of a bar from each other, without colour."""
    between: str
    """Between two figures in a line."""
    spread: str
    """The end of a bar that is not certain."""
    here: str
    """Points at what is in use."""
    good: str
    """Comes before what is well."""
    caution: str
    trouble: str
    arrow: str
    """Comes before what to do."""
    plus_minus: str
    cut: str
    """Shows that something has no room."""


BLOCKS = Glyphs(
    levels=" ▁▂▃▄▅▆▇█", full="█", empty="░", gauge_full="━", gauge_half="╸", gauge_empty="─",
    frame="╭╮╰╯─│",
    halves="█▀▄", has_braille=True, line="─", mark="▲", limit="╌", median="┄", parts="▆▄▂▁▅▃",
    between=" · ",
    spread="▒", here="▶", good="✓", caution="!", trouble="✗", arrow="→", plus_minus="±", cut="…",
    upright="┃",
)  # fmt: skip
ASCII = Glyphs(
    levels=" .:=#", full="#", empty=".", gauge_full="#", gauge_half="", gauge_empty="-",
    frame="++++-|", halves="",
    has_braille=False, line="-", mark="^", limit="-", median="~", parts="#=+.o:", between=" - ",
    spread="-", here=">",
    good="ok", caution="!", trouble="x", arrow="->", plus_minus="+-", cut=".", upright="#",
)  # fmt: skip


def choose_glyphs(environ: Mapping[str, str] = os.environ, encoding: str | None = None) -> Glyphs:
    """Return what this terminal can show: a console, or the encoding of its output, may lack block
    characters."""
    if is_console(environ):
        return ASCII
    if encoding is None:
        encoding = getattr(sys.__stdout__, "encoding", None) or "utf-8"
    try:
        "".join(sign for sign in vars(BLOCKS).values() if isinstance(sign, str)).encode(encoding)
    except (UnicodeError, LookupError):
        return ASCII
    return BLOCKS


def cut(text: str, width: int) -> str:
    """Shorten a text to ``width`` columns, with a sign where something is missing."""
    if len(text) <= width:
        return text
    return text[: max(0, width - 1)] + choose_glyphs().cut
