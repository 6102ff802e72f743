"""Reads what the environment says of the terminal. Sends nothing to it and asks it nothing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping

from app.doctor.readings import TerminalReadings
from app.program.clipboard import has_desktop

_PROGRAMS = {"wayland": ("wl-copy",), "x11": ("xclip", "xsel"), "": ("pbcopy", "clip.exe")}


def read_terminal(
    environ: Mapping[str, str],
    is_terminal: bool,
    encoding: str,
    size: tuple[int, int],
    find_program: Callable[[str], str | None] = shutil.which,
) -> TerminalReadings:
    """Return what is known of the terminal.

    Args:
        encoding: of standard output.
        size: columns and rows.
    """
    name = environ.get("TERM", "")
    desktop = "wayland" if environ.get("WAYLAND_DISPLAY") else "x11" if environ.get("DISPLAY") else ""
    program = next((program for program in _PROGRAMS[desktop] if find_program(program)), "")
    # TERM_PROGRAM alone, which tmux sets on servers too, makes no desktop.
    reaches_desktop = has_desktop(environ) and bool(desktop or program)
    return TerminalReadings(
        is_terminal=is_terminal,
        name=name,
        columns=size[0],
        rows=size[1],
        encoding=encoding,
        colours=_colours(name, environ),
        clipboard="desktop" if reaches_desktop else "file" if name == "linux" else "terminal",
        clipboard_program=program if reaches_desktop else "",
        desktop=desktop,
        multiplexer="tmux" if environ.get("TMUX") else "screen" if environ.get("STY") else "",
    )


def read_standard_output(environ: Mapping[str, str]) -> TerminalReadings:
    """Return what is known of the terminal that standard output is."""
    stream = sys.stdout
    columns, rows = shutil.get_terminal_size()
    return read_terminal(environ, stream.isatty(), getattr(stream, "encoding", "") or "", (columns, rows))


def _colours(name: str, environ: Mapping[str, str]) -> int | None:
    if environ.get("NO_COLOR"):
        return 0
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return 1 << 24
    if "256color" in name or "direct" in name:
        return 256
    return 16 if name and name != "dumb" else None
