"""Unsent drafts of the prompt, from the end of the program to its next start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from app.conversations.database import is_upgraded
from app.conversations.locks import StoreError
from app.conversations.store import Store
from app.conversations.upkeep import run_transaction

if TYPE_CHECKING:
    import sqlite3

MOST_DRAFT_BYTES = 64 << 20
"""Limit on all unsent drafts. A paste of the largest size takes at most 24 MB."""


def save_drafts(root: Path | None, drafts: Sequence[str]) -> int:
    """Add drafts, oldest first, and return how many of the newest fit.

    Raises StoreError: no draft is saved.
    """

    def save(db: sqlite3.Connection) -> int:
        if not is_upgraded(db):
            raise StoreError("the saved conversations cannot be upgraded now")
        saved_bytes = db.execute("SELECT total(length(content)) FROM draft").fetchone()[0]
        newest: list[str] = []
        for draft in reversed(drafts):
            saved_bytes += len(draft)
            if saved_bytes > MOST_DRAFT_BYTES:
                break
            newest.insert(0, draft)
        db.executemany("INSERT INTO draft(content) VALUES(?)", [(draft,) for draft in newest])
        return len(newest)

    return run_transaction(root, save, writes=True)


def take_drafts(root: Path | None) -> list[str]:
    """Return all saved drafts, oldest first, and delete them. Nothing is created.

    Raises StoreError: the drafts stay.
    """
    if not Store(root).select(_count_drafts):
        return []
    return run_transaction(root, _take, writes=True)


def _count_drafts(db: sqlite3.Connection) -> int:
    if not is_upgraded(db):
        return 0
    return int(db.execute("SELECT count(*) FROM draft").fetchone()[0])


def _take(db: sqlite3.Connection) -> list[str]:
    rows = db.execute("SELECT content FROM draft ORDER BY id").fetchall()
    db.execute("DELETE FROM draft")
    return [content for (content,) in rows if isinstance(content, str)]
