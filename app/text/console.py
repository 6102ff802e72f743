"""Whether the terminal is a plain console: few glyphs, 16 colours, no clipboard. Chosen by itself or by --tty."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

_SWITCH = "JALOPY_CONSOLE"


def is_console(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to draw for a console: Linux's own, or what the user says is one."""
    return environ.get("TERM") == "linux" or bool(environ.get(_SWITCH))


def choose_console(environ: MutableMapping[str, str] = os.environ) -> None:
    """Draw for a console whatever the terminal says it is."""
    environ[_SWITCH] = "1"
