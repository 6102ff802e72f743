"""Unsent drafts across starts: saved while they are typed and at the end, and taken at the start."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import field
from pathlib import Path

from app.conversations.database import NAME
from app.conversations.drafts import MOST_DRAFT_BYTES, SavedDraft, save_drafts, take_drafts
from app.conversations.locks import StoreError
from app.documents.pictures import PICTURES, REFERENCE_START
from app.program import notices, paths
from app.program.background import in_background
from app.program.small_file import DamagedFileError, read_bounded
from app.text.record import record
from app.tui.chat.draft import Draft
from app.tui.chat.history import parse_draft, write_draft


@record
class UnsentDrafts:
    """Drafts that were not sent, oldest first."""

    drafts: Sequence[Draft] = field(default_factory=list)
    conversation_id: str | None = None
    """Id of the conversation in which the newest was typed; "" for one without messages.

    None if an older version saved it.
    """


class DraftSaver:
    """Saves the unsent drafts of a chat, each time in place of those from before.

    Threads write, so the interface waits for no disk.
    """

    def __init__(self) -> None:
        self._newest = UnsentDrafts()
        self._newest_root = paths.conversations_dir()
        self._saved: UnsentDrafts | None = UnsentDrafts()
        """Drafts that are saved; None if that is not known."""
        self._roots: set[Path | None] = set()
        """Directories whose databases may have drafts of this program."""
        self._lock = threading.Lock()
        """Held while drafts are written."""

    def save(self, unsent: UnsentDrafts, root: Path | None = None) -> Future[str]:
        """Begin to save drafts.

        Args:
            root: directory of their database; None for that of all conversations.

        Returns:
            The reason why they are not saved; "" if they are.
        """
        self._newest = unsent
        self._newest_root = root or paths.conversations_dir()
        return in_background(self._write_newest, "drafts")

    def _write_newest(self) -> str:
        with self._lock:
            newest = self._newest
            root = self._newest_root
            is_same = self._saved is not None and newest.drafts == self._saved.drafts
            other_roots = self._roots - {root}
            if is_same and not (newest.drafts and other_roots):
                return ""
            trouble = store_drafts(newest.drafts, newest.conversation_id or "", root)
            if root == paths.conversations_dir():
                texts = [draft.text for draft in newest.drafts]
                for text in texts:
                    if REFERENCE_START in text:
                        PICTURES.save(text)
            self._saved = None if trouble else newest
            if not trouble:
                for other_root in other_roots:
                    store_drafts([], "", other_root)
                self._roots = {root}
            return trouble

    def take(self) -> UnsentDrafts:
        """Return the drafts that ended programs did not send."""
        unsent = take_stored_drafts()
        if unsent.drafts:
            self._saved = None
            self._roots = {root for root in _roots() if root and (root / NAME).exists()}
        return unsent


def _roots() -> list[Path | None]:
    """Return the directories that may have drafts: on disk, then in memory."""
    memory = paths.memory_directory()
    return [paths.conversations_dir(), *([memory] if memory is not None else [])]


def store_drafts(
    drafts: Sequence[Draft], conversation_id: str = "", root: Path | None = None
) -> str:
    """Save the unsent drafts of this program, oldest first; return why that failed, or "".

    Args:
        root: directory of their database; None for that of all conversations.
    """
    lines = [write_draft(draft).decode("ascii") for draft in drafts]
    try:
        n_saved = save_drafts(root or paths.conversations_dir(), lines, conversation_id)
    except StoreError as error:
        return str(error)
    if n_saved < len(lines):
        return "there are too many unsent messages"
    return ""


def take_stored_drafts() -> UnsentDrafts:
    """Return the drafts that ended programs did not send."""
    saved = _take_older_file(paths.unsent_file())
    for root in _roots():
        with suppress(StoreError):  # the chat reports what is wrong with the database
            saved += take_drafts(root)
    drafts = []
    conversation_id = None
    for entry in saved:
        draft = parse_draft(entry.content)
        if draft is not None:
            drafts.append(draft)
            conversation_id = entry.conversation_id
    return UnsentDrafts(drafts, conversation_id)


def _take_older_file(file: Path | None) -> list[SavedDraft]:
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
    return [SavedDraft(line.decode("utf-8", "replace")) for line in raw.splitlines()]
