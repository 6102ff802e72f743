"""Output of a shell command that the user typed, bounded in time and size."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import suppress

from app.text.clean_text import clean_text
from app.text.record import record

TIMEOUT_S = 60.0
"""Seconds after which a command is ended."""
MOST_BYTES = 64 << 10
"""Limit on the output; a command that writes more is ended."""
_PIECE_BYTES = 1 << 14
_ENDING_S = 2.0
"""Seconds until a killed command is no longer waited for."""
_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
"""Escape sequences for a terminal, such as colours and titles."""


@record
class ShellOutput:
    """Standard output and error of a command, and how it ended."""

    text: str
    """Clean text, with a last line that says what is missing or how the command failed."""
    n_lines: int


async def shell_output(command: str, timeout_s: float = TIMEOUT_S) -> ShellOutput:
    """Run a command with the user's shell, without input, and return its output.

    The command and all processes that it started end with this call.

    Raises:
        OSError: there is no shell, or no process can be started.
    """
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat"},
        start_new_session=True,
    )
    raw = bytearray()
    note = ""
    try:
        code = await asyncio.wait_for(_read(process, raw), timeout_s)
        if code:
            note = f"(ended with code {code})"
    except asyncio.TimeoutError:
        note = f"(ended after {timeout_s:.0f} s)"
    finally:
        await _end(process)
    if len(raw) > MOST_BYTES:
        note = f"(more than {MOST_BYTES >> 10} KiB: the rest is left out)"
    text = _TERMINAL_CODES.sub("", bytes(raw[:MOST_BYTES]).decode("utf-8", "replace"))
    text = clean_text(text).rstrip()
    text = "\n".join(filter(None, (text, note))) or "(no output)"
    return ShellOutput(text, text.count("\n") + 1)


async def _read(process: asyncio.subprocess.Process, raw: bytearray) -> int:
    """Append the output until it exceeds the limit, or until the command ends; return its code."""
    assert process.stdout is not None
    while len(raw) <= MOST_BYTES:
        piece = await process.stdout.read(_PIECE_BYTES)
        if not piece:
            return await process.wait()
        raw += piece
    return 0


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the process and those that it started, and read what is left in the pipe.

    A process that left the group may hold the output open; it is not waited for.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(process.communicate(), _ENDING_S)
