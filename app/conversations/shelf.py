"""The shelf: every document that was sent whole with a message, as the saved conversations have it.

Nothing is kept twice. A document is on the shelf as long as a conversation has it, and goes with the last of them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from app.conversations.locks import StoreError
from app.conversations.message_row import UnsoundError, message_of
from app.conversations.store import IS_CONVERSATION, MOST_TITLE_CHARS, Store, id_of, size_of
from app.documents.read import MOST_CHARS, Document, about_tokens
from app.documents.text_file import PAGE_LINE, documents_of
from app.text.clean_text import clean_line
from app.text.record import record

if TYPE_CHECKING:
    import sqlite3

MOST_DOCUMENTS = 200
_MOST_CHARS = 4 * MOST_CHARS
"""Limit on the messages that are looked through, those used last first."""
_BEGINS_WITH_FILE = '{"folded":"[file\\u00a0'
"""How the row of a message goes on that begins with the chip of a file."""
_PAGES = re.compile(rf"^{PAGE_LINE.pattern}$", re.MULTILINE)


@record
class Shelved:
    """A document on the shelf, without its text."""

    key: str
    """Of its name and text: the same wherever it was sent."""
    name: str
    n_pages: int
    """0 where it has none."""
    n_lines: int
    text_bytes: int
    about_tokens: int
    place: tuple[int, int, int]
    """Where its text is: the conversation, the message, and which of the files there."""
    changed: str
    """When the conversation changed that used it last: wall time, ISO, only for display."""
    title: str
    """Of that conversation."""
    conversations: tuple[str, ...]
    """Ids of those that have it, the one used last first."""
    states_bytes: int = 0
    """What their saved states take; what they share counted once."""

    @property
    def extent(self) -> str:
        """Its length: "12 pages", "340 lines"."""
        n, what = (self.n_pages, "page") if self.n_pages else (self.n_lines, "line")
        return f"{n:,} {what}{'' if n == 1 else 's'}"


def shelved_in(store: Store) -> tuple[Shelved, ...]:
    """Return what is on the shelf, the document used last first. Raises StoreError."""
    found = store.select(_documents) or {}
    numbers = [int(one) for document in found.values() for one in document.conversations]
    segments = store.segments_of(numbers)

    def states_bytes(document: Shelved) -> int:
        return sum(map(size_of, set().union(*(segments.get(int(one), ()) for one in document.conversations))))

    return tuple(replace(one, states_bytes=states_bytes(one)) for one in found.values())


def document_of(store: Store, shelved: Shelved) -> Document:
    """Return a document with its text. Raises StoreError: it is not there any more."""
    number, place, at = shelved.place
    sql = "SELECT role, text, more FROM message WHERE conversation=? AND place=?"
    for row in store.rows(sql, number, place):
        for name, text in _documents_in(row)[at : at + 1]:
            if _key(name, text) == shelved.key:
                return Document(name, Path(name), text, about_tokens(text))
    raise StoreError(f"{clean_line(shelved.name, 80)} is not on the shelf any more")


def _documents(db: sqlite3.Connection) -> dict[str, Shelved]:
    found: dict[str, Shelved] = {}
    n_chars = 0
    sql = (
        "SELECT c.id, c.title, c.changed, m.place, m.role, m.text, m.more FROM conversation c JOIN message m"
        f" ON m.conversation=c.id WHERE c.{IS_CONVERSATION} AND m.role='user' AND substr(m.more, 1, ?)=?"
        " ORDER BY c.used DESC, c.id DESC, m.place DESC"
    )
    for number, title, changed, place, *row in db.execute(sql, (len(_BEGINS_WITH_FILE), _BEGINS_WITH_FILE)):
        n_chars += len(str(row[1]))
        if n_chars > _MOST_CHARS:
            break
        for at, (name, text) in enumerate(_documents_in(row)):
            key, conversation = _key(name, text), id_of(number)
            before = found.get(key)
            if before is not None and conversation not in before.conversations:
                found[key] = replace(before, conversations=(*before.conversations, conversation))
            elif before is None and len(found) < MOST_DOCUMENTS:
                n_pages = len(_PAGES.findall(text)) if name.lower().endswith(".pdf") else 0
                found[key] = Shelved(
                    key, name, n_pages, text.count("\n") + 1, len(text.encode()), about_tokens(text),
                    (number, place, at), clean_line(str(changed), 40), clean_line(str(title), MOST_TITLE_CHARS),
                    (conversation,),
                )  # fmt: skip
    return found


def _documents_in(row: list[object]) -> list[tuple[str, str]]:
    try:
        return documents_of(message_of(*row).text)
    except UnsoundError:
        return []


def _key(name: str, text: str) -> str:
    return blake2b(f"{name}\n{text}".encode(), digest_size=16).hexdigest()
