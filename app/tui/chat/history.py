"""History of the prompt: steps through sent messages, and the files that keep them, and unsent
ones, across starts.

A file is one JSON object a line, for its owner alone, bounded in size. It is a convenience: lines
that are not sound are passed over, and a failed write is told in one line and costs nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.conversations.drafts import MOST_DRAFT_BYTES, save_drafts, take_drafts
from app.conversations.locks import StoreError
from app.program import notices, paths
from app.program.small_file import DamagedFileError, append_file, read_bounded, replace_file
from app.text.clean_text import clean_text
from app.tui.chat.draft import Draft

MAX_ENTRIES = 200
MAX_ENTRY_BYTES = 64 << 10
"""Longer messages are kept until the program ends, not in the file."""
MAX_FILE_BYTES = 1 << 20
"""Past this the file is written again with the newest entries that fill half of it."""
_MOST_BYTES = 2 * MAX_FILE_BYTES


class PromptHistory:
    """The drafts sent so far, newest last, and where the user is among them."""

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        self._entries: list[Draft] = []
        self._limit = limit
        self._position = 0
        """Index of the entry that is shown; after the newest comes the draft that was left."""
        self._kept = Draft()

    def add(self, draft: Draft) -> None:
        """Remember a draft, unless it repeats the one before."""
        if not self._entries or self._entries[-1] != draft:
            self._entries.append(draft)
            del self._entries[: -self._limit]
        self._position = len(self._entries)

    def add_older(self, drafts: Iterable[Draft]) -> None:
        """Put drafts of earlier starts before those of this one."""
        self._entries = [*drafts, *self._entries][-self._limit :]
        self._position = len(self._entries)

    def is_showing(self, draft: Draft) -> bool:
        """Whether the draft is the entry the user is at, unchanged."""
        return (
            self._position < len(self._entries)
            and self._entries[self._position].shown == draft.shown
        )

    def older(self, current: Draft) -> Draft | None:
        """Step back; None at the oldest.

        From what is no entry the way begins at the newest, and leads back to it.
        """
        if not self.is_showing(current):
            self._position = len(self._entries)
            self._kept = current
        if self._position == 0:
            return None
        self._position -= 1
        return self._entries[self._position]

    def newer(self) -> Draft:
        """Step forward; after the newest comes the draft that was left."""
        self._position = min(self._position + 1, len(self._entries))
        return [*self._entries, self._kept][self._position]

    def find(self, text: str) -> Draft | None:
        """Return the newest draft that says this text, folds and all."""
        wanted = text.strip()
        return next(
            (draft for draft in reversed(self._entries) if draft.text.strip() == wanted), None
        )


def read_history(file: Path | None) -> list[Draft]:
    """Return what earlier starts left, oldest first; nothing where there is no sound file."""
    if file is None:
        return []
    try:
        raw = read_bounded(file, _MOST_BYTES)
        if raw is None:
            raise DamagedFileError(f"larger than {_MOST_BYTES >> 10} KiB")
    except (OSError, DamagedFileError) as error:
        notices.add_ignored(file, error, "the history of the prompt is not read")
        return []
    return parse_drafts(line for line in raw.splitlines() if len(line) <= MAX_ENTRY_BYTES)[
        -MAX_ENTRIES:
    ]


def append_history(file: Path | None, draft: Draft) -> str | None:
    """Add one draft; returns a line that says why nothing is kept, or None.

    Without a file nothing is to be kept.
    """
    line = write_draft(draft)
    if file is None or len(line) > MAX_ENTRY_BYTES:
        return None
    if paths.private_directory(file.parent) is None:
        return f"{file.parent}: is not writable: the history of the prompt is not kept"
    try:
        if append_file(file, line) > MAX_FILE_BYTES:
            newest = newest_lines(read_history(file), MAX_FILE_BYTES // 2)
            replace_file(file, b"".join(newest), durable=False)
    except OSError as error:
        return f"{file}: {error.strerror}: the history of the prompt is not kept"
    return None


def save_unsent(drafts: Sequence[Draft]) -> str:
    """Save unsent drafts, oldest first, for the next start; return why that failed, or ""."""
    lines = [write_draft(draft).decode("ascii") for draft in drafts]
    try:
        n_saved = save_drafts(paths.conversations_dir(), lines)
    except StoreError as error:
        return str(error)
    if n_saved < len(lines):
        return "there are too many unsent messages"
    return ""


def take_unsent() -> list[Draft]:
    """Return the drafts that an earlier run did not send, oldest first, and delete them."""
    lines = _take_older_file(paths.unsent_file())
    with suppress(StoreError):  # the chat reports what is wrong with the database
        lines += [line.encode() for line in take_drafts(paths.conversations_dir())]
    return parse_drafts(lines)


def _take_older_file(file: Path | None) -> list[bytes]:
    """Return the lines of the file in which older versions saved unsent drafts, and delete it."""
    if file is None:
        return []
    try:
        raw = read_bounded(file, MOST_DRAFT_BYTES)
        if raw is None:
            raise DamagedFileError(f"larger than {MOST_DRAFT_BYTES >> 20} MiB")
        file.unlink()
    except (OSError, DamagedFileError) as error:
        notices.add_ignored(file, error, "unsent messages are not read")
        return []
    return raw.splitlines()


def write_draft(draft: Draft) -> bytes:
    """Write a draft as a line of JSON."""
    entry: dict[str, object] = {"shown": draft.shown, "folds": draft.used_folds()}
    if draft.referred:
        entry["references"] = sorted(draft.referred)
    return json.dumps(entry).encode("ascii") + b"\n"


def newest_lines(drafts: Sequence[Draft], room_bytes: int) -> list[bytes]:
    """Write the newest drafts that fit, oldest first."""
    kept: list[bytes] = []
    for line in map(write_draft, reversed(drafts)):
        room_bytes -= len(line)
        if room_bytes < 0:
            break
        kept.insert(0, line)
    return kept


def parse_drafts(lines: Iterable[bytes]) -> list[Draft]:
    """Read such lines, cleaned, without those that are not sound."""
    return [draft for draft in map(_parse_draft, lines) if draft is not None]


def _parse_draft(line: bytes) -> Draft | None:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match entry:
        case {"shown": str(shown), "folds": dict(folds)} if all(
            isinstance(text, str) for text in folds.values()
        ):
            draft = Draft(
                clean_text(shown), {chip: clean_text(text) for chip, text in folds.items()}
            )
            named = entry.get("references")
            references = (
                frozenset(name for name in named if isinstance(name, str))
                if isinstance(named, list)
                else ()
            )
            if shown.strip():
                return Draft(draft.shown, draft.used_folds(), frozenset(references))
            return None
    return None
