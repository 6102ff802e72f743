"""History of the prompt, and the file that keeps it across starts.

The file has one JSON object a line. Only its owner may read it, and its size is limited.
Damaged lines are skipped, and a failed write costs one line to the user.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from app.program import notices, paths
from app.program.small_file import DamagedFileError, append_file, read_bounded, replace_file
from app.text.clean_text import clean_text
from app.tui.chat.draft import Draft

MAX_ENTRIES = 200
MAX_ENTRY_BYTES = 64 << 10
"""Limit on drafts in the file; longer ones are in the history until the program ends."""
MAX_FILE_BYTES = 1 << 20
"""Size above which the file is written again with its newest entries, up to half of it."""
_MAX_READ_BYTES = 2 * MAX_FILE_BYTES


class PromptHistory:
    """The drafts that were sent, newest last, and the position of the user in them."""

    def __init__(self, limit: int = MAX_ENTRIES) -> None:
        self._entries: list[Draft] = []
        self._limit = limit
        self.position = 0
        """Index of the entry in the prompt; after the newest comes the unsent draft."""
        self._unsent = Draft()
        """Draft that was in the prompt before the user recalled an entry."""

    def add(self, draft: Draft) -> None:
        """Add a draft, unless it repeats the newest one."""
        if not self._entries or self._entries[-1] != draft:
            self._entries.append(draft)
            del self._entries[: -self._limit]
        self.position = len(self._entries)

    def add_older(self, drafts: Iterable[Draft]) -> None:
        """Add drafts of earlier starts before those of this one."""
        self._entries = [*drafts, *self._entries][-self._limit :]
        self.position = len(self._entries)

    def is_showing(self, draft: Draft) -> bool:
        """Return whether a draft is the recalled entry, unchanged."""
        if self.position == len(self._entries):
            return False
        return self._entries[self.position].folded_text == draft.folded_text

    def older(self, current: Draft) -> Draft | None:
        """Return the entry before the recalled one; None if that is the oldest.

        If no entry is recalled, return the newest, and remember the current draft.
        """
        self.remember(current)
        if self.position == 0:
            return None
        self.position -= 1
        return self._entries[self.position]

    def newer(self) -> Draft:
        """Return the entry after the recalled one; after the newest, the unsent draft."""
        self.position = min(self.position + 1, len(self._entries))
        return [*self._entries, self._unsent][self.position]

    def unsent(self, current: Draft) -> Draft:
        """Return the draft that was not sent: the current one, or if that is a recalled entry, the
        one before.
        """
        return self._unsent if self.is_showing(current) else current

    def index_with(self, text: str, last: int) -> int | None:
        """Return the index of the newest entry with a text, at most ``last``; None if there is
        none.
        """
        key = text.casefold()
        for index in range(min(last, len(self._entries) - 1), -1, -1):
            if key in self._entries[index].folded_text.casefold():
                return index
        return None

    def remember(self, current: Draft) -> None:
        """Remember the current draft as the unsent one, unless it is the recalled entry."""
        if not self.is_showing(current):
            self.position = len(self._entries)
            self._unsent = current

    def recall(self, index: int) -> Draft:
        """Return an entry."""
        self.position = index
        return self._entries[index]

    def older_index(self) -> int:
        """Return the index of the newest older entry that differs from the recalled one."""
        recalled = self._entries[self.position :][:1]
        index = self.position - 1
        while index >= 0 and [self._entries[index]] == recalled:
            index -= 1
        return index

    def find(self, text: str) -> Draft | None:
        """Return the newest draft with a text; None if there is none."""
        text = text.strip()
        for draft in reversed(self._entries):
            if draft.text.strip() == text:
                return draft
        return None


class HistorySearch:
    """Search of the history for a text while it is typed, from the newest entry.

    Args:
        draft: draft in the prompt before the search.
    """

    def __init__(self, history: PromptHistory, draft: Draft) -> None:
        self.text = ""
        self.draft = draft
        """Draft in the prompt: the entry that was found last, or the one before the search."""
        self.has_match = True
        self._history = history
        history.remember(draft)
        self._before = draft, history.position

    def add(self, typed: str) -> None:
        """Search for more text, from the present entry on."""
        self.text += typed
        self._search(self._history.position)

    def erase(self) -> None:
        """Search for one character less, from the newest entry on."""
        self.text = self.text[:-1]
        self._search(MAX_ENTRIES)

    def older(self) -> None:
        """Go to an older entry with the text."""
        self._search(self._history.older_index())

    def leave(self) -> Draft:
        """Return the draft from before the search."""
        draft, self._history.position = self._before
        return draft

    def _search(self, last: int) -> None:
        self.has_match = True
        if not self.text:
            return
        index = self._history.index_with(self.text, last)
        self.has_match = index is not None
        if index is not None:
            self.draft = self._history.recall(index)


def read_history(file: Path | None) -> list[Draft]:
    """Return the drafts of earlier starts, oldest first; empty if there is no readable file."""
    if file is None:
        return []
    try:
        raw = read_bounded(file, _MAX_READ_BYTES)
        if raw is None:
            raise DamagedFileError(f"larger than {_MAX_READ_BYTES >> 10} KiB")
    except (OSError, DamagedFileError) as error:
        notices.add_ignored(file, error, "the history of the prompt is not read")
        return []
    return parse_drafts(line for line in raw.splitlines() if len(line) <= MAX_ENTRY_BYTES)[
        -MAX_ENTRIES:
    ]


def append_history(file: Path | None, draft: Draft) -> str | None:
    """Append a draft to the history file, if there is one.

    Returns:
        A line that says why the draft is not saved; None if it is.
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


def write_draft(draft: Draft) -> bytes:
    """Return a draft as a line of JSON."""
    entry: dict[str, object] = {"shown": draft.folded_text, "folds": draft.used_folds()}
    if draft.referred:
        entry["references"] = sorted(draft.referred)
    return json.dumps(entry).encode("ascii") + b"\n"


def newest_lines(drafts: Sequence[Draft], max_bytes: int) -> list[bytes]:
    """Return the newest drafts that fit into a size as lines of JSON, oldest first."""
    lines: list[bytes] = []
    for line in map(write_draft, reversed(drafts)):
        max_bytes -= len(line)
        if max_bytes < 0:
            break
        lines.insert(0, line)
    return lines


def parse_drafts(lines: Iterable[bytes]) -> list[Draft]:
    """Return the drafts of lines of JSON, with clean text; damaged lines are skipped."""
    return [draft for draft in map(parse_draft, lines) if draft is not None]


def parse_draft(line: bytes | str) -> Draft | None:
    """Return the draft of a line of JSON, with clean text; None if the line is damaged."""
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    match entry:
        case {"shown": str(text), "folds": dict(folds)} if text.strip():
            if not all(isinstance(paste, str) for paste in folds.values()):
                return None
            clean_folds = {chip: clean_text(paste) for chip, paste in folds.items()}
            draft = Draft(clean_text(text), clean_folds)
            names = entry.get("references")
            if not isinstance(names, list):
                names = []
            references = frozenset(name for name in names if isinstance(name, str))
            return Draft(draft.folded_text, draft.used_folds(), references)
    return None
