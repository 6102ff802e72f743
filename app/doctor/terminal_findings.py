"""Findings on the terminal's display and clipboard. Pure functions of readings."""

from __future__ import annotations

from collections.abc import Iterable

from app.doctor.findings import FEW_COLUMNS, FEW_ROWS, OK, WEAK, Finding, Look
from app.doctor.readings import Readings


def screen(readings: Readings) -> Iterable[Finding]:
    """Judge the terminal's kind and size."""
    t = readings.terminal
    if not t.is_terminal:
        yield Finding(OK, "terminal", "none: output goes to a file or a pipe", "the chat works line by line there")
        return
    found = f"{t.name or 'of unknown kind'}, {t.columns} x {t.rows}"
    if t.name in ("", "dumb"):
        yield Finding(WEAK, "terminal", found, "only the line mode works", "export TERM=xterm-256color")
    elif t.columns < FEW_COLUMNS or t.rows < FEW_ROWS:
        yield Finding(WEAK, "terminal", found, f"screens want {FEW_COLUMNS} x {FEW_ROWS}", "enlarge the window")
    else:
        yield Finding(OK, "terminal", found)


def colours(readings: Readings) -> Iterable[Finding]:
    """Say how many colours there are; every screen reads without any."""
    t = readings.terminal
    if not t.is_terminal or t.colours is None:
        return
    if t.colours == 0:
        yield Finding(OK, "colours", "none, as NO_COLOR asks")
    elif t.colours >= 1 << 24:
        yield Finding(OK, "colours", "16 million")
    elif t.colours == 256:
        yield Finding(OK, "colours", "256", "if it can do more: export COLORTERM=truecolor")
    else:
        yield Finding(OK, "colours", str(t.colours), "the theme jalopy-16 is made for them")


def glyphs(readings: Readings) -> Iterable[Finding]:
    """Judge whether bars, boxes and foreign letters can be shown."""
    t = readings.terminal
    if not t.is_terminal:
        return
    if t.name == "linux":
        yield Finding(OK, "glyphs", "those of the Linux console", "borders and bars are drawn in ASCII")
    elif t.encoding.lower().replace("-", "") == "utf8":
        yield Finding(OK, "glyphs", "UTF-8")
    else:
        yield Finding(
            WEAK, "glyphs", f"encoding {t.encoding or 'unknown'}", "letters and bars it lacks become question marks",
            "export LC_ALL=C.UTF-8",
        )  # fmt: skip


def clipboard(readings: Readings) -> Iterable[Finding]:
    """Say where copied text goes, and what is missing for a better way."""
    t = readings.terminal
    if not t.is_terminal:
        return
    if t.clipboard == "file":
        yield Finding(OK, "clipboard", "none on a console", "/copy writes a file and names it")
    elif t.clipboard == "desktop" and t.clipboard_program:
        yield Finding(OK, "clipboard", f"the desktop's, through {t.clipboard_program}")
    elif t.clipboard == "desktop":
        package = "wl-clipboard" if t.desktop == "wayland" else "xclip"
        yield Finding(
            WEAK, "clipboard", "no program for the desktop's", "copying depends on the terminal, which never answers",
            f"sudo apt install {package}",
        )  # fmt: skip
    elif t.multiplexer == "tmux":
        yield Finding(
            OK, "clipboard", "the terminal's (OSC 52), through tmux",
            "if pasting gives nothing: tmux set -g set-clipboard on; /save writes a file",
        )  # fmt: skip
    else:
        yield Finding(OK, "clipboard", "the terminal's (OSC 52)", "if pasting gives nothing: /save writes a file")


TERMINAL_LOOKS: tuple[Look, ...] = (screen, colours, glyphs, clipboard)
