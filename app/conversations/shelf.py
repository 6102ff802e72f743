"""The shelf: every document that was sent whole with a message, as the saved conversations have it.

Nothing is kept twice: a document is on the shelf as long as a conversation has it in which it was not taken off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.conversations.database import cause_of
from app.conversations.locks import StoreError
from app.conversations.message_row import UnsoundError, message_of
from app.conversations.store import IS_CONVERSATION, MOST_TITLE_CHARS, Store, id_of, size_of
from app.documents.read import MOST_CHARS, Document, about_tokens
from app.documents.text_file import PAGE_LINE, documents_of
from app.program.small_file import JsonFile
from app.text.clean_text import clean_line
from app.text.figures import counted
from app.text.record import record

if TYPE_CHECKING:
    import sqlite3

MOST_DOCUMENTS, _MOST_OFF = 200, 5000
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
    place: tuple[int, int]
    """Where its text is: which message, and which of the files there."""
    changed: str
    """When the conversation changed that used it last: wall time, ISO, only for display."""
    title: str
    """Of that conversation."""
    conversations: tuple[str, ...]
    """Ids of those that have it, the one used last first."""
    marks: tuple[str, ...]
    """What is kept of each once the document is taken off the shelf."""
    states_bytes: int = 0
    """What their saved states take; what they share counted once."""

    @property
    def extent(self) -> str:
        """Its length: "12 pages", "340 lines"."""
        return counted(self.n_pages, "page") if self.n_pages else counted(self.n_lines, "line")


def shelved_in(store: Store) -> tuple[Shelved, ...]:
    """Return what is on the shelf, the document used last first. Raises StoreError."""
    found = store.select(partial(_documents, _off(store))) or {}
    numbers = [int(one) for document in found.values() for one in document.conversations]
    segments = store.segments_of(numbers)

    def states_bytes(document: Shelved) -> int:
        return sum(map(size_of, set().union(*(segments.get(int(one), ()) for one in document.conversations))))

    return tuple(replace(one, states_bytes=states_bytes(one)) for one in found.values())


def document_of(store: Store, shelved: Shelved) -> Document:
    """Return a document with its text. Raises StoreError: it is not there any more."""
    message_id, at = shelved.place
    for name, text in (store.select(partial(_documents_of, message_id)) or [])[at : at + 1]:
        if _key(name, text) == shelved.key:
            return Document(name, Path(name), text, about_tokens(text))
    raise StoreError(f"{clean_line(shelved.name, 80)} is not on the shelf any more")


def take_off(store: Store, shelved: Shelved, kept: Iterable[Path] = ()) -> None:
    """Delete what was read of a document, and conversations of nothing else; others keep its text.

    Args:
        kept: files of what was read of other documents in the same conversations.

    Raises:
        StoreError: it stays on the shelf.
    """
    mine, of_each = set(map(int, shelved.conversations)), store.segments_of([int(one) for one in store.ids()])
    shared = set(kept).union(*(paths for number, paths in of_each.items() if number not in mine))
    for path in set().union(*(of_each.get(number, ()) for number in mine)) - shared:
        with suppress(OSError):
            path.unlink()
    left, alone = [], document_of(store, shelved).in_message.strip()
    for conversation_id, mark in zip(shelved.conversations, shelved.marks, strict=True):
        with suppress(StoreError):  # it is gone, or in use
            said = store.read(conversation_id).conversation.messages
            if [one.text.strip() for one in said] == [alone]:
                store.delete(conversation_id)
                continue
        left.append(mark)
    try:
        _file(store).save(off=[*_off(store), *left][-_MOST_OFF:])
    except (OSError, ValueError) as error:
        raise StoreError(f"not deleted: {cause_of(error) if isinstance(error, OSError) else error}") from None


def _off(store: Store) -> list[str]:
    found = _file(store).read().get("off")
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def _file(store: Store) -> JsonFile:
    return JsonFile(store.root / "off-shelf.json" if store.root is not None else None, 1, 1 << 20)


def _documents(off: list[str], db: sqlite3.Connection) -> dict[str, Shelved]:
    found: dict[str, Shelved] = {}
    n_chars, taken_off = 0, set(off)
    sql = (
        "SELECT m.id, c.id, c.title, c.began, c.changed FROM conversation c JOIN message m ON m.conversation=c.id"
        f" WHERE c.{IS_CONVERSATION} AND m.role='user' AND substr(m.more, 1, ?)=?"
        " ORDER BY c.used DESC, c.id DESC, m.place DESC"
    )
    begins = len(_BEGINS_WITH_FILE), _BEGINS_WITH_FILE
    for message_id, number, title, began, changed in db.execute(sql, begins).fetchall():
        for at, (name, text) in enumerate(_documents_of(message_id, db) if n_chars < MOST_CHARS else ()):
            n_chars += len(text)
            key, conversation = _key(name, text), id_of(number)
            before, mark = found.get(key), f"{key} {number} {clean_line(str(began), 40)}"
            if mark in taken_off:
                continue
            if before is not None and conversation not in before.conversations:
                ids, marks = (*before.conversations, conversation), (*before.marks, mark)
                found[key] = replace(before, conversations=ids, marks=marks)
            elif before is None and len(found) < MOST_DOCUMENTS:
                n_pages = len(_PAGES.findall(text)) if name.lower().endswith(".pdf") else 0
                found[key] = Shelved(
                    key, name, n_pages, text.count("\n") + 1, len(text.encode()), about_tokens(text),
                    (message_id, at), clean_line(str(changed), 40), clean_line(str(title), MOST_TITLE_CHARS),
                    (conversation,), (mark,),
                )  # fmt: skip
    return found


def _documents_of(message_id: int, db: sqlite3.Connection) -> list[tuple[str, str]]:
    row = db.execute("SELECT role, text, more FROM message WHERE id=?", (message_id,)).fetchone()
    with suppress(UnsoundError):
        return documents_of(message_of(*row).text) if row is not None else []
    return []


def _key(name: str, text: str) -> str:
    from hashlib import blake2b  # which no first frame waits for

    return blake2b(f"{name}\n{text}".encode(), digest_size=16).hexdigest()
