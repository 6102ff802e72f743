"""Row of a conversation in the list, in a small file beside its log, so that the list need not read the log.

A log only ever grows: where it has another size than the file says, it is read, and the file written anew.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from app.conversations.replay import MOST_TITLE_CHARS, Saved
from app.program.small_file import JsonFile
from app.text.clean_text import clean_line
from app.text.record import record

SUMMARY_NAME = "summary.json"
VERSION = 1
_MOST_FILE_BYTES = 64 << 10
_MOST_PATH_CHARS = 4096
_LARGEST = 1 << 53


@record
class Summary:
    """One row of the list. All text is clean and of one line, but for ``model_path``, which is a path."""

    title: str = ""
    began: str = ""
    changed: str = ""
    """Wall time, ISO, only for display."""
    model: str = ""
    model_path: str = ""
    order: int = 0
    """Which was used later has the larger one."""
    n_messages: int = 0
    """With those that wait for their turn."""
    tokens: int = 0
    """Generated in all replies."""


def summary_of(saved: Saved) -> Summary:
    """Return the row of a conversation that was read."""
    messages = saved.conversation.messages
    return Summary(
        saved.shown_title,
        saved.began,
        saved.changed,
        saved.model,
        saved.model_path,
        saved.order,
        len(messages) + len(saved.waiting),
        sum(m.figures.tokens if m.figures is not None else len(m.ids) for m in messages),
    )


def write_summary(directory: Path, summary: Summary, log_bytes: int) -> None:
    """Write the file; a failure costs the next list a moment and nothing else."""
    _file(directory).write(log_bytes=log_bytes, **asdict(summary))


def read_summary(directory: Path, log_bytes: int) -> Summary | None:
    """Return what the file says of a log of this size; None where it says nothing that can be used."""
    values = _file(directory).read()
    if values.get("log_bytes") != log_bytes:
        return None
    found: dict[str, Any] = {one.name: values.get(one.name) for one in fields(Summary)}
    counts = ("order", "n_messages", "tokens")
    if not all(type(found[name]) is int and 0 <= found[name] <= _LARGEST for name in counts):
        return None
    texts = [name for name in found if name not in counts]
    if not all(isinstance(found[name], str) for name in texts):
        return None
    clean = {name: clean_line(found[name], MOST_TITLE_CHARS) for name in texts}
    return Summary(**{**found, **clean, "model_path": found["model_path"][:_MOST_PATH_CHARS]})


def remembered_title(directory: Path) -> str:
    """Return the title that a conversation had when the file was written, for a log that lost it; "" for unknown."""
    title = _file(directory).read().get("title")
    return clean_line(title, MOST_TITLE_CHARS) if isinstance(title, str) else ""


def _file(directory: Path) -> JsonFile:
    # A conversation that is deleted meanwhile stays so.
    return JsonFile(directory / SUMMARY_NAME, VERSION, _MOST_FILE_BYTES, makes_directory=False)
