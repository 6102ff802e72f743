"""Copying text to the desktop's clipboard, else to the terminal, else to a file.

A terminal never confirms OSC 52, so that text is "sent", not "copied".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from app.program import paths
from app.program.background import in_background
from app.text.glyphs import is_console

NATIVE_PATIENCE_S = 2.0
OSC52_MOST_BYTES = 74_994
"""Limit of terminals that follow xterm: 100,000 characters in base64."""
FILE_NAME = "copied.txt"


def has_desktop(environ: Mapping[str, str]) -> bool:
    """Whether a clipboard program would reach the user's desktop."""
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
    """Copy by the best route, or to a file, and return a sentence about it.

    Args:
        send_to_terminal: writes the text as OSC 52.
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
    return "sent to the terminal's clipboard (if pasting does not work: /copy file)"


async def _copy_natively(text: str) -> bool:
    """Copy with the clipboard program. One that hangs delays neither the screen nor quitting."""

    def ask() -> bool:
        import pyperclip

        pyperclip.copy(text)
        # pyperclip does not report a failed program, such as xclip without a display
        return bool(pyperclip.paste().split() == text.split())

    try:
        return await asyncio.wait_for(
            asyncio.wrap_future(in_background(ask, "clipboard")), NATIVE_PATIENCE_S
        )
    except Exception:  # on any error the next route is tried
        return False


def _copy_to_file(text: str) -> str:
    directory = paths.private_directory(paths.state_dir())
    if directory is None:
        return "not copied: no directory is writable (/save PATH saves the conversation)"
    path = directory / FILE_NAME
    try:
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        return f"not copied: {path}: {error.strerror} (/save PATH saves the conversation)"
    return f"written to {path}"
