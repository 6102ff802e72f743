"""Copying text out: the desktop's clipboard, else the terminal, else a file; and saying truthfully
which.

A terminal never answers OSC 52, so that route is "sent", never "copied". The file is the last
resort, and always named.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from app.program import paths
from app.program.background import in_background
from app.text.glyphs import is_console

NATIVE_PATIENCE_S = 2.0
OSC52_MOST_BYTES = 74_994
"""Longer texts are dropped by terminals that follow xterm's limit of 100,000 characters in
base64."""
_FILE_NAME = "copied.txt"


def has_desktop(environ: Mapping[str, str]) -> bool:
    """Whether a native clipboard program would reach the desktop the user sits at."""
    if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        return False
    return bool(
        environ.get("WAYLAND_DISPLAY") or environ.get("DISPLAY") or environ.get("TERM_PROGRAM")
    )


async def copy(
    text: str,
    send_to_terminal: Callable[[str], None],
    environ: Mapping[str, str],
    to_file: bool = False,
) -> str:
    """Copy by the best route, or to a file; return a sentence.

    ``send_to_terminal`` writes the text as OSC 52.
    """
    if to_file:
        return _copy_to_file(text)
    if has_desktop(environ) and await _copy_natively(text):
        return "copied"
    if is_console(environ):
        return f"this console has no clipboard: {_copy_to_file(text)}"
    if len(text.encode("utf-8", "replace")) > OSC52_MOST_BYTES:
        return f"too long for many terminals' clipboards: {_copy_to_file(text)}"
    send_to_terminal(text)
    return "sent to the terminal's clipboard; if pasting gives nothing, `/copy file` writes a file"


async def _copy_natively(text: str) -> bool:
    """Ask the clipboard program; one that hangs must not hold up the screen or quitting."""

    def ask() -> bool:
        import pyperclip

        pyperclip.copy(text)
        # It does not tell that its program failed, as xclip does on a display that is gone.
        return bool(pyperclip.paste().split() == text.split())

    try:
        return await asyncio.wait_for(
            asyncio.wrap_future(in_background(ask, "clipboard")), NATIVE_PATIENCE_S
        )
    except Exception:  # whatever it is, the next route is tried
        return False


def _copy_to_file(text: str) -> str:
    directory = paths.private_directory(paths.state_dir())
    if directory is None:
        return "not copied, no directory for a file is writable (/save PATH saves the conversation)"
    path = directory / _FILE_NAME
    try:
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        return f"not copied, {path}: {error.strerror} (/save PATH saves the conversation)"
    return f"written to {path}"
