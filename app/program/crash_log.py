"""The traceback of a bug, for the log file, without anything a person typed or a model wrote.

Frames and the exception's type are kept. Local variables and the exception's own message are not: either may hold
text of the conversation.
"""

from __future__ import annotations

from app.program.refusals import log_crash


class MessageLeftOut(Exception):
    """An exception whose message is not written down."""


def bug_line(error: BaseException, where: str = "") -> str:
    """Log a bug and return the line that names it: "internal error: KeyError (details in .../jalopy.log)"."""
    log = log_without_text(error)
    return f"internal error{where}: {type(error).__name__} ({f'details in {log}' if log else 'not logged'})"


def log_without_text(error: BaseException) -> str | None:
    """Write the error's type and frames to the log; return the log's path, or None where it cannot be written."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return log_crash(MessageLeftOut(kind).with_traceback(error.__traceback__))
