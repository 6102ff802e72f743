"""One clean line on stderr for everything the program will not do, and the log file for what only a developer needs.

Knows no engine and no screen. ``EngineError`` is told apart by its ``exit_code``, so that nothing is imported here.
"""

import os
import sys
import traceback
from datetime import datetime

from app import exit_codes, paths
from app.clean_text import clean_line

MAX_LINE_CHARS = 300


class Refusal(Exception):
    """Something the user asked for that cannot be done; the message is the line they read."""

    def __init__(self, message: str, exit_code: int = exit_codes.USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def say(line: str) -> None:
    """Write one line to stderr, cleaned and bounded; a closed or dead stderr is no reason to fail."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(clean_line(line, limit=MAX_LINE_CHARS) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def exit_code_of(error: BaseException) -> int | None:
    """Return the exit code of an error that is meant to be shown, or None for a bug."""
    if isinstance(error, MemoryError):
        return exit_codes.NO_MEMORY
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        return code
    if isinstance(error, OSError):
        return exit_codes.IO_ERROR
    return None


def refuse(error: BaseException) -> int:
    """Say in one line what went wrong, log what was not foreseen, and return the exit code."""
    code = exit_code_of(error)
    if code is None:
        log = log_crash(error)
        where = f"details in {log}" if log else "no log could be written"
        say(f"jalopy: internal error: {type(error).__name__}: {error} ({where})")
        return exit_codes.INTERNAL
    if isinstance(error, MemoryError) and not hasattr(error, "exit_code"):
        say("jalopy: not enough memory (choose a smaller --ctx or a smaller model)")
    elif isinstance(error, OSError) and not hasattr(error, "exit_code"):
        file = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""
        say(f"jalopy: {file}{error.strerror or error}")
    else:
        line = str(error)
        say(line if line.startswith(("jalopy: ", "jalopy ")) else f"jalopy: {line}")
    return code


def log_crash(error: BaseException) -> str | None:
    """Append the traceback to the log file, mode 0600, without local variables: those would hold chat text.

    Returns:
        The log file's path, or None where nothing could be written.
    """
    directory = paths.private_directory(paths.state_dir())
    if directory is None:
        return None
    log = directory / paths.LOG_NAME
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
        with os.fdopen(os.open(log, flags, 0o600), "a", encoding="utf-8", errors="backslashreplace") as file:
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), 0o600)
            file.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')}\n{''.join(lines)}\n")
    except OSError:
        return None
    return str(log)
