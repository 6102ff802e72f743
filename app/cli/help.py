"""``jalopy help``: prints pages of the manual, through a pager on a terminal."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from app.cli.arguments import COMMANDS, parse
from app.program import exit_codes, manual
from app.program.manual import PageLine

_PAGERS = ("less", "more")
"""Programs that show a page if the environment names none."""
_LESS_OPTIONS = "FRX"
"""Options of less: end at once if the page fits, show colours, and leave the page on screen."""
_BOLD = "\x1b[1m"
_PLAIN = "\x1b[0m"


def help(topic: str | None = None) -> int:
    """Show a page of the manual, the help of a command, or the list of topics."""
    if topic is not None and topic in COMMANDS and topic not in manual.topics():
        # The manual has no page of the command; its options are described by its parser.
        parse([topic, "--help"])
    text = manual.start_page()
    if topic is not None:
        text = manual.page(topic)
    is_terminal = sys.stdout.isatty()
    size = shutil.get_terminal_size()
    lines = manual.lay_out(text, size.columns)
    is_bold = is_terminal and "NO_COLOR" not in os.environ
    shown = "".join(f"{_decorated(line, is_bold)}\n" for line in lines)
    is_long = len(lines) >= size.lines
    if not (is_terminal and is_long and _shown_in_pager(shown, os.environ)):
        print(shown, end="", flush=True)
    return exit_codes.OK


def _decorated(line: PageLine, is_bold: bool) -> str:
    if line.is_heading and is_bold:
        return f"{_BOLD}{line.text}{_PLAIN}"
    return line.text


def pager_command(environment: Mapping[str, str]) -> Sequence[str]:
    """Return the command of the user's pager; empty if there is none."""
    try:
        command = shlex.split(environment.get("PAGER", ""))
    except ValueError:  # a quotation mark is open
        command = []
    if command:
        return command
    return next(([name] for name in _PAGERS if shutil.which(name)), [])


def _shown_in_pager(text: str, environment: Mapping[str, str]) -> bool:
    """Show a text in the pager; return False if there is no pager or it cannot be started."""
    command = pager_command(environment)
    if not command or command == ["cat"]:
        return False
    try:
        pager = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            env={"LESS": _LESS_OPTIONS, **environment},
            text=True,
            encoding="utf-8",
        )
    except OSError:
        return False
    with pager:
        try:
            pager.communicate(text)
        except KeyboardInterrupt:  # less uses Ctrl+C itself, and goes on
            pager.wait()
    return True
