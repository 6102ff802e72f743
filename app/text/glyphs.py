"""Characters for bars and graphs, with plain ones for terminals that lack them.

A console has few glyphs, 16 colours and no clipboard. It is recognised by ``TERM`` or ``--tty``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from app.text.record import record

_SWITCH = "JALOPY_CONSOLE"


def is_console(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal is a plain console, by its type or the user's choice."""
    return environ.get("TERM") == "linux" or bool(environ.get(_SWITCH))


def choose_console() -> None:
    """Treat the terminal as a plain console, whatever it reports."""
    os.environ[_SWITCH] = "1"


@record
class Glyphs:
    """Characters for drawing."""

    levels: str
    """Levels of a graph, from empty to full."""
    full: str
    empty: str
    gauge_full: str
    gauge_half: str
    """Half a cell of a gauge; "" if there is none."""
    gauge_empty: str
    upright: str
    """Visible part of a scroll bar."""
    frame: str
    """Corners (upper left, upper right, lower left, lower right), horizontal and vertical line."""
    halves: str
    """Both halves, upper half and lower half of a cell; "" if there are none."""
    has_braille: bool
    line: str
    mark: str
    """Pointer to something above it."""
    change: str
    """Pointer to the place of a change below it."""
    limit: str
    median: str
    parts: str
    """Fillings of one height that tell the sections of a bar apart without colour."""
    between: str
    """Separator of two figures in a line."""
    spread: str
    """Whisker at the end of a bar, for its uncertainty."""
    spread_end: str
    here: str
    """Pointer to the value in use."""
    good: str
    """Sign of a good result."""
    caution: str
    trouble: str
    arrow: str
    """Sign before advice."""
    plus_minus: str
    cut: str
    """Sign of cut text."""
    eye: str
    """Sign of a model that reads pictures."""


BLOCKS = Glyphs(
    levels=" ▁▂▃▄▅▆▇█", full="█", empty="░", gauge_full="━", gauge_half="╸", gauge_empty="─",
    frame="╭╮╰╯─│",
    halves="█▀▄", has_braille=True, line="─", mark="▲", change="▼", limit="╌", median="┄",
    parts="█▓▒░▌▚", between=" · ",
    spread="─", spread_end="┤", here="▶", good="✓", caution="!", trouble="✗", arrow="→",
    plus_minus="±", cut="…",
    upright="┃", eye="◉",
)  # fmt: skip
ASCII = Glyphs(
    levels=" .:=#", full="#", empty=".", gauge_full="#", gauge_half="", gauge_empty="-",
    frame="++++-|", halves="",
    has_braille=False, line="-", mark="^", change="v", limit="-", median="~", parts="#=+.o:",
    between=" - ", spread="-", spread_end="|", here=">",
    good="ok", caution="!", trouble="x", arrow="->", plus_minus="+-", cut=".", upright="#",
    eye="sees",
)  # fmt: skip


def choose_glyphs(environ: Mapping[str, str] = os.environ, encoding: str | None = None) -> Glyphs:
    """Return the glyphs that this terminal can show, by its type and encoding."""
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
    """Shorten a text to ``width`` columns, with a sign if it is cut."""
    if len(text) <= width:
        return text
    return text[: max(0, width - 1)] + choose_glyphs().cut
