"""Tables of the database of conversations, in each version."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

VERSION = 4
"""Version of the tables; ``database.connect`` adds those that an older version lacks."""
FIRST_TABLES = (
    "CREATE TABLE conversation(id INTEGER PRIMARY KEY, title TEXT, system TEXT, began TEXT, "
    "changed TEXT, model TEXT, "
    "model_path TEXT, used INTEGER, n_dropped INTEGER, forked_from INTEGER, unsent TEXT, "
    "waiting TEXT, "
    "adapters TEXT)",
    "CREATE TABLE message(id INTEGER PRIMARY KEY, conversation INTEGER NOT NULL REFERENCES "
    "conversation "
    "ON DELETE CASCADE, place INTEGER NOT NULL, role TEXT, tokens INTEGER, n_bytes INTEGER, "
    "text TEXT, more TEXT, "
    "UNIQUE(conversation, place))",
    "CREATE TABLE piece(id INTEGER PRIMARY KEY, conversation INTEGER NOT NULL REFERENCES "
    "conversation "
    "ON DELETE CASCADE, more TEXT)",
    "CREATE TABLE segment(conversation INTEGER NOT NULL REFERENCES conversation ON DELETE "
    "CASCADE, kind TEXT NOT NULL, "
    "name TEXT NOT NULL, UNIQUE(conversation, kind, name))",
)
DOCUMENT_TABLES = (
    "CREATE TABLE removed_document(conversation INTEGER NOT NULL REFERENCES conversation "
    "ON DELETE CASCADE, key TEXT NOT NULL, UNIQUE(conversation, key))",
    "CREATE TABLE long_document(id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, name TEXT, "
    "n_pages INTEGER, n_lines INTEGER, n_tokens INTEGER)",
    "CREATE TABLE draft(id INTEGER PRIMARY KEY, content TEXT NOT NULL)",
)
BRANCH_TABLES = (
    "CREATE TABLE branch(id INTEGER PRIMARY KEY, conversation INTEGER NOT NULL REFERENCES "
    "conversation ON DELETE CASCADE, place INTEGER NOT NULL, number INTEGER NOT NULL, "
    "tokens INTEGER, n_bytes INTEGER, text TEXT, more TEXT, UNIQUE(conversation, place, number))",
)
MARK_TABLES = (
    "CREATE TABLE tag(conversation INTEGER NOT NULL REFERENCES conversation ON DELETE CASCADE, "
    "name TEXT NOT NULL, UNIQUE(conversation, name))",
    "CREATE TABLE pin(conversation INTEGER PRIMARY KEY REFERENCES conversation ON DELETE CASCADE)",
    "CREATE TABLE summary(conversation INTEGER NOT NULL REFERENCES conversation ON DELETE "
    "CASCADE, n_messages INTEGER NOT NULL, n_dropped INTEGER NOT NULL, text TEXT NOT NULL, "
    "UNIQUE(conversation, n_messages))",
)
TABLES = {
    1: FIRST_TABLES,
    2: (*FIRST_TABLES, *DOCUMENT_TABLES),
    3: (*FIRST_TABLES, *DOCUMENT_TABLES, *BRANCH_TABLES),
    VERSION: (*FIRST_TABLES, *DOCUMENT_TABLES, *BRANCH_TABLES, *MARK_TABLES),
}
"""Tables of each version. Their text must not change: it tells this program's files from others."""


def has_table(db: sqlite3.Connection, name: str) -> bool:
    """Whether the database has a table, which older versions may lack."""
    sql = "SELECT 1 FROM sqlite_master WHERE type='table' AND name=?"
    return db.execute(sql, (name,)).fetchone() is not None
