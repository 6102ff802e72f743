"""Error lines on stderr, and the log file with tracebacks of bugs.

This module knows neither engine nor screen: an ``EngineError`` is recognised by its ``exit_code``.
The log has frames and exception types. Local variables and messages of bugs in the chat are left
out, because they may contain text of the conversation.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from app.program import exit_codes, paths
from app.text.clean_text import clean_line
from engine.machine import address_space
from engine.machine.files import safe_flags

MAX_LINE_CHARS = 300
_NO_THREAD = ("can't start new thread", "cannot join thread before it is started")
"""Messages without a thread; Textual turns the first into the second."""
_NO_ROOM = (
    "failed to map segment",
    "cannot allocate memory",
    "cannot create shared object descriptor",
)
_UNREADABLE = ("Input/output error", "cannot read file data", "cannot open shared object file")
"""Messages of the system's loader."""
_MOST_CAUSES = 20


class Refusal(Exception):
    """A request that cannot be carried out; the message is the line for the user."""

    def __init__(self, message: str, exit_code: int = exit_codes.USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def say(line: str) -> None:
    """Write one clean, bounded line to stderr, if stderr works."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(clean_line(line, limit=MAX_LINE_CHARS) + "\n")
            sys.stderr.flush()


def exit_code_of(error: BaseException) -> int | None:
    """Return the exit code of an error meant for the user; None for a bug."""
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        return code
    return _of_system(error)[0]


def refuse(error: BaseException) -> int:
    """Report an error in one line, log it if it is a bug, and return the exit code."""
    code = exit_code_of(error)
    if code is None:
        log = log_crash(error)
        if log:
            log_text = f"details in {log}"
        else:
            log_text = "no log could be written"
        say(f"jalopy: internal error: {type(error).__name__}: {error} ({log_text})")
        return exit_codes.INTERNAL
    say(line_of(error))
    return code


def line_of(error: BaseException) -> str:
    """Return the line of an error meant for the user."""
    if hasattr(error, "exit_code"):
        line = str(error)
    else:
        line = _of_system(error)[1]
    if line.startswith(("jalopy: ", "jalopy ")):
        return line
    return f"jalopy: {line}"


def shown_line(error: BaseException) -> str:
    """Return the line of any error for a screen. A bug is logged and named by its type."""
    if exit_code_of(error) is None:
        return bug_line(error)
    return line_of(error).removeprefix("jalopy: ")


def _of_system(error: BaseException) -> tuple[int | None, str]:
    """Return exit code and text of an error of the system; None for another error."""
    if isinstance(error, MemoryError) or _needs_thread(error) or _needs_memory(error):
        return exit_codes.NO_MEMORY, _refused_words(error)
    if isinstance(error, OSError):
        if isinstance(error.filename, (str, bytes)):
            file = f"{os.fsdecode(error.filename)}: "
        else:
            file = ""
        return exit_codes.IO_ERROR, f"{file}{error.strerror or error}"
    if reason := _unreadable_part(error):
        return exit_codes.IO_ERROR, f"a library cannot be loaded: {reason}"
    return None, str(error)


def _needs_thread(error: BaseException) -> bool:
    return any(
        isinstance(cause, RuntimeError) and str(cause) in _NO_THREAD
        for cause in _with_causes(error)
    )


def _needs_memory(error: BaseException) -> bool:
    """Whether an error is about missing memory; libraries report that in many ways."""
    if getattr(error, "errno", None) == errno.ENOMEM:
        return True
    if not isinstance(error, (ImportError, OSError)):
        return False
    return any(words in str(cause).lower() for cause in _with_causes(error) for words in _NO_ROOM)


def _unreadable_part(error: BaseException) -> str:
    """Return why the system cannot read a library; "" for another error."""
    if not isinstance(error, ImportError):
        return ""
    lines = [line for cause in _with_causes(error) for line in str(cause).splitlines()]
    return next(
        (line.strip() for line in reversed(lines) if any(words in line for words in _UNREADABLE)),
        "",
    )


def _refused_words(error: BaseException) -> str:
    limit = address_space.limit_bytes()
    if limit is not None and (limit < address_space.NEEDED_BYTES or not _needs_thread(error)):
        return address_space.blame(limit)
    if _needs_thread(error):
        return (
            "the system allows no more threads (raise the limit on processes: ulimit -u, or the "
            "container's)"
        )
    return "not enough memory (choose a smaller --ctx or a smaller model)"


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def log_crash(error: BaseException) -> str | None:
    """Append a traceback to the log file (mode 0600) and return its path; None if that failed."""
    directory = paths.private_directory(paths.state_dir())
    if directory is None:
        return None
    log = directory / paths.LOG_NAME
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    try:
        flags = safe_flags(os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(
            os.open(log, flags, 0o600), "a", encoding="utf-8", errors="backslashreplace"
        ) as file:
            if hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), 0o600)
            file.write(
                f"{datetime.now().astimezone().isoformat(timespec='seconds')}\n{''.join(lines)}\n"
            )
    except OSError:
        return None
    return str(log)


class MessageLeftOut(Exception):
    """An exception without its message."""


def bug_line(error: BaseException, where: str = "") -> str:
    """Log a bug and return its line: "internal error: KeyError (details in .../jalopy.log)"."""
    log = log_without_text(error)
    return (
        f"internal error{where}: {type(error).__name__} "
        f"({f'details in {log}' if log else 'not logged'})"
    )


def log_without_text(error: BaseException) -> str | None:
    """Log type and frames of an error, without its message, and return the log's path; None if that
    failed.
    """
    type_name = f"{type(error).__module__}.{type(error).__qualname__}"
    return log_crash(MessageLeftOut(type_name).with_traceback(error.__traceback__))
