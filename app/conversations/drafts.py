"""Unsent drafts of the prompt, from the moment they are typed to the next start.

Each row begins with a line that names the process that saved it and its conversation, so a program
that starts takes no draft from one that still runs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.conversations.locks import StoreError
from app.conversations.store import Store
from app.conversations.tables import has_table
from app.conversations.upkeep import run_transaction
from app.text.record import record

if TYPE_CHECKING:
    import sqlite3

MOST_DRAFT_BYTES = 64 << 20
"""Limit on all unsent drafts. A paste of the largest size takes at most 24 MB."""
_BOOT_FILE = Path("/proc/sys/kernel/random/boot_id")
_ENDED = (b"Z", b"X")
"""States of processes that have ended and still have an entry in /proc."""


@record
class SavedDraft:
    """A draft as it is in the database."""

    content: str
    """The draft as a line of JSON."""
    conversation_id: str | None = None
    """Id of the conversation in which it was typed; "" for one without messages.

    None if an older version saved the draft.
    """


def save_drafts(root: Path | None, drafts: Sequence[str], conversation_id: str = "") -> int:
    """Save drafts, oldest first, in place of the earlier ones of this process.

    Returns:
        The number of the newest drafts that are saved.

    Raises:
        StoreError: Nothing has changed.
    """
    process = process_name(os.getpid())
    header = f"{process} {conversation_id}\n"

    def save(db: sqlite3.Connection) -> int:
        if not has_table(db, "draft"):
            raise StoreError("the saved conversations cannot be upgraded now")
        mark = f"{process} "
        db.execute("DELETE FROM draft WHERE substr(content, 1, ?)=?", (len(mark), mark))
        saved_bytes = db.execute("SELECT total(length(content)) FROM draft").fetchone()[0]
        newest: list[str] = []
        for draft in reversed(drafts):
            saved_bytes += len(draft)
            if saved_bytes > MOST_DRAFT_BYTES:
                break
            newest.insert(0, header + draft)
        db.executemany("INSERT INTO draft(content) VALUES(?)", [(row,) for row in newest])
        return len(newest)

    return run_transaction(root, save, writes=True)


def take_drafts(root: Path | None) -> list[SavedDraft]:
    """Return the drafts of ended processes, oldest first, and save them as those of this one.

    Nothing is created.

    Raises:
        StoreError: Nothing has changed.
    """
    if not Store(root).select(_count_drafts):
        return []
    return run_transaction(root, _take, writes=True)


def _count_drafts(db: sqlite3.Connection) -> int:
    if not has_table(db, "draft"):
        return 0
    return int(db.execute("SELECT count(*) FROM draft").fetchone()[0])


def _take(db: sqlite3.Connection) -> list[SavedDraft]:
    process = process_name(os.getpid())
    taken: list[SavedDraft] = []
    for row_id, row in db.execute("SELECT id, content FROM draft ORDER BY id").fetchall():
        if not isinstance(row, str):
            db.execute("DELETE FROM draft WHERE id=?", (row_id,))
            continue
        owner, draft = _split(row)
        if owner == process or not _is_running(owner):
            taken.append(draft)
            header = f"{process} {draft.conversation_id or ''}\n"
            db.execute("UPDATE draft SET content=? WHERE id=?", (header + draft.content, row_id))
    return taken


def _split(row: str) -> tuple[str, SavedDraft]:
    """Return the process that saved a row, "" if an older version did, and the draft."""
    if row.startswith("{"):
        return "", SavedDraft(row)
    header, _, content = row.partition("\n")
    process, _, conversation_id = header.partition(" ")
    return process, SavedDraft(content, conversation_id)


# ---- processes


def process_name(pid: int) -> str:
    """Return a name that no other process has, even after the machine has started again.

    Returns:
        Boot, number and start of the process; "" if there is no such process.
    """
    try:
        boot = _BOOT_FILE.read_text("ascii").strip()
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
    except (OSError, UnicodeDecodeError):
        return ""
    if len(fields) < 20 or fields[0] in _ENDED:
        return ""
    return f"{boot}:{pid}:{fields[19].decode('ascii', 'replace')}"


def _is_running(process: str) -> bool:
    """Return whether the process with this name runs on this machine."""
    pid = process.split(":")[1:2]
    if not pid or not pid[0].isdecimal() or len(pid[0]) > 10:
        return False
    return process_name(int(pid[0])) == process
