"""Files that older versions of the program kept next to the database, or elsewhere in it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.conversations.branch_rows import insert_branches
from app.conversations.message_row import UnsoundError, message_of, row_of
from app.program import paths
from app.program.small_file import JsonFile
from app.text.clean_text import clean_line

if TYPE_CHECKING:
    import sqlite3

REMOVED_NAME = "off-shelf.json"
"""File of documents that were removed from the list."""
LONG_NAME = "long-documents.json"
"""File of documents whose passages were sent."""
VECTORS_NAME = "passage-vectors.db"
"""File of passage vectors, which is in the cache directory now."""
_MOST_BYTES = 1 << 20
_LONG_TYPES = [str, str, int, int, int]
"""Types of path, name, pages, lines and tokens."""


def import_older_files(db: sqlite3.Connection, root: Path) -> None:
    """Copy the document list of an older program into the database. Its files stay as they are."""
    for mark in _list_in(root / REMOVED_NAME, "off"):
        if isinstance(mark, str):
            _import_removed(db, mark)
    for row in _list_in(root / LONG_NAME, "documents"):
        if _is_long_document(row):
            save_long_document(db, *row)


def move_alternatives(db: sqlite3.Connection) -> None:
    """Make branches of the alternative replies that version 2 kept among a reply's values."""
    sql = (
        "SELECT id, conversation, place, role, text, more FROM message "
        """WHERE place>=0 AND more LIKE '%"others":[%'"""
    )
    for message_id, number, place, role, text, json_text in db.execute(sql).fetchall():
        try:
            message = message_of(role, text, json_text)
        except UnsoundError:
            continue
        _, _, n_bytes, _, json_text = row_of(message)
        row = (n_bytes, json_text, message_id)
        db.execute("UPDATE message SET n_bytes=?, more=? WHERE id=?", row)
        insert_branches(db, number, place, message.alternatives)


def save_long_document(
    db: sqlite3.Connection, path: str, name: str, n_pages: int, n_lines: int, n_tokens: int
) -> None:
    """Write the row of a document whose passages were sent, as the newest one."""
    path = clean_line(path, 4096)
    db.execute("DELETE FROM long_document WHERE path=?", (path,))
    db.execute(
        "INSERT INTO long_document(path, name, n_pages, n_lines, n_tokens) VALUES(?, ?, ?, ?, ?)",
        (path, clean_line(name, 120), n_pages, n_lines, n_tokens),
    )


def _import_removed(db: sqlite3.Connection, mark: str) -> None:
    """Import "KEY CONVERSATION BEGAN", unless that number belongs to another conversation now."""
    key, _, location = mark.partition(" ")
    number, _, began = location.partition(" ")
    if number.isdecimal() and len(number) <= 12:
        db.execute(
            "INSERT OR IGNORE INTO removed_document SELECT id, ? FROM conversation "
            "WHERE id=? AND coalesce(began, 'None')=?",
            (key, int(number), began),
        )


def _is_long_document(row: object) -> bool:
    return (
        isinstance(row, list)
        and [type(value) for value in row] == _LONG_TYPES
        and all(0 <= value < 1 << 53 for value in row[2:])
    )


def _list_in(path: Path, name: str) -> list[Any]:
    """Return a list of a JSON file; empty if there is no sound file."""
    values = JsonFile(path, 1, _MOST_BYTES).read().get(name)
    if isinstance(values, list):
        return values
    return []


def vectors_path(root: Path) -> Path | None:
    """Return the path of the passage vectors, and move the file of an older version there.

    None if the cache directory cannot be used.
    """
    path = paths.vectors_file()
    if path is None or paths.private_directory(path.parent) is None:
        return None
    with suppress(OSError):  # the vectors are computed again
        if os.path.lexists(root / VECTORS_NAME) and not os.path.lexists(path):
            os.rename(root / VECTORS_NAME, path)
    return path
