"""The shelf: every document that was sent with a message, whole or in passages, as the saved
conversations have it.

Nothing is kept twice: a document is on the shelf as long as a conversation has it in which it was
not taken off. Of one that went in passages the path is kept: its file is read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
from app.documents.text_file import PAGE_LINE, PASSAGE_NAME, files_of
from app.program.small_file import JsonFile
from app.text.clean_text import clean_line
from app.text.figures import counted
from app.text.record import record

if TYPE_CHECKING:
    import sqlite3

MOST_DOCUMENTS = 200
_MOST_OFF = 5000
_BEGINS_WITH_FILE = '{"folded":"[file\\u00a0'
"""How the row of a message goes on that begins with the chip of a file."""
_LongDocument = tuple[str, str, int, int, int]
"""Path, name, pages, lines and about how many tokens of a document that went in passages."""
_PAGES = re.compile(rf"^{PAGE_LINE.pattern}$", re.MULTILINE)


@record
class DocumentEntry:
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
    path: str = ""
    """Of the file of a document that went in passages, whose text is nowhere else; "" for one that
    went whole."""

    @property
    def extent(self) -> str:
        """Its length: "12 pages", "340 lines"."""
        if self.n_pages:
            return counted(self.n_pages, "page")
        return counted(self.n_lines, "line")


def list_documents(store: Store) -> tuple[DocumentEntry, ...]:
    """Return what is on the shelf, the document used last first. Raises StoreError."""
    found = store.select(partial(_documents, _off(store), _long(store))) or {}
    numbers = [int(one) for document in found.values() for one in document.conversations]
    segments = store.segments_of(numbers)

    def states_bytes(document: DocumentEntry) -> int:
        return sum(
            map(
                size_of,
                set().union(*(segments.get(int(one), ()) for one in document.conversations)),
            )
        )

    return tuple(replace(one, states_bytes=states_bytes(one)) for one in found.values())


def load_document(store: Store, shelved: DocumentEntry) -> Document:
    """Return a document with its text. Raises StoreError: it is not there any more."""
    message_id, at = shelved.place
    for name, text in (store.select(partial(_files_of, message_id)) or ([], set()))[0][at : at + 1]:
        if _key(name, text) == shelved.key:
            return Document(name, Path(name), text, about_tokens(text))
    raise StoreError(f"{clean_line(shelved.name, 80)} is not on the shelf any more")


def remove_document(store: Store, shelved: DocumentEntry, kept: Iterable[Path] = ()) -> None:
    """Delete what was read of a document, and conversations of nothing else; others keep its text.

    Args:
        kept: files of what was read of other documents in the same conversations.

    Raises:
        StoreError: it stays on the shelf.
    """
    mine = set(map(int, shelved.conversations))
    of_each = store.segments_of([int(one) for one in store.ids()])
    shared = set(kept).union(*(paths for number, paths in of_each.items() if number not in mine))
    for path in set().union(*(of_each.get(number, ()) for number in mine)) - shared:
        with suppress(OSError):
            path.unlink()
    left = []
    if shelved.path:
        alone = None
    else:
        alone = load_document(store, shelved).in_message.strip()
    for conversation_id, mark in zip(shelved.conversations, shelved.marks, strict=True):
        with suppress(StoreError):  # it is gone, or in use
            said = store.read(conversation_id).conversation.messages
            if [one.text.strip() for one in said] == [alone]:
                store.delete(conversation_id)
                continue
        left.append(mark)
    try:
        _file(store).save(off=[*_off(store), *left][-_MOST_OFF:])
        if shelved.path:
            _long_file(store).save(
                documents=[one for one in _long(store) if one[0] != shelved.path]
            )
    except (OSError, ValueError) as error:
        raise StoreError(
            f"not deleted: {cause_of(error) if isinstance(error, OSError) else error}"
        ) from None


def save_long_documents(store: Store, documents: Sequence[Document]) -> None:
    """Passages of these documents go with a message: keep where their files are."""
    new = [
        (
            str(one.path),
            one.name,
            _n_pages(one.name, one.text),
            one.text.count("\n") + 1,
            about_tokens(one.text),
        )
        for one in documents
    ]
    paths = {one[0] for one in new}
    with suppress(OSError, ValueError):  # they are not on the shelf, then
        kept = [one for one in _long(store) if one[0] not in paths]
        _long_file(store).save(documents=[*kept, *new][-MOST_DOCUMENTS:])


def _long(store: Store) -> list[_LongDocument]:
    found = _long_file(store).read().get("documents")
    if isinstance(found, list):
        sound = [one for one in found if _is_long(one)]
    else:
        sound = []
    return [
        (clean_line(one[0], 4096), clean_line(one[1], 120), *one[2:])
        for one in sound[-MOST_DOCUMENTS:]
    ]


def _is_long(one: object) -> bool:
    return (
        isinstance(one, list)
        and [type(value) for value in one] == [str, str, int, int, int]
        and min(one[2:]) >= 0
    )


def _long_file(store: Store) -> JsonFile:
    return JsonFile(
        store.root / "long-documents.json" if store.root is not None else None, 1, 1 << 20
    )


def _off(store: Store) -> list[str]:
    found = _file(store).read().get("off")
    if isinstance(found, list):
        return [one for one in found if isinstance(one, str)]
    return []


def _file(store: Store) -> JsonFile:
    return JsonFile(store.root / "off-shelf.json" if store.root is not None else None, 1, 1 << 20)


def _documents(
    off: list[str], long: list[_LongDocument], db: sqlite3.Connection
) -> dict[str, DocumentEntry]:
    """Return the documents by their keys. ``long``: those whose passages may be in messages."""
    found: dict[str, DocumentEntry] = {}
    n_chars = 0
    taken_off = set(off)
    sql = (
        "SELECT m.id, c.id, c.title, c.began, c.changed FROM conversation c JOIN message m ON "
        "m.conversation=c.id"
        f" WHERE c.{IS_CONVERSATION} AND m.role='user' AND substr(m.more, 1, ?)=?"
        " ORDER BY c.used DESC, c.id DESC, m.place DESC"
    )
    begins = len(_BEGINS_WITH_FILE), _BEGINS_WITH_FILE
    for message_id, number, title, began, changed in db.execute(sql, begins).fetchall():
        if n_chars < MOST_CHARS:
            whole, passages_of = _files_of(message_id, db)
        else:
            whole, passages_of = ([], set[str]())
        n_chars += sum(len(text) for _, text in whole)
        used = clean_line(str(changed), 40), clean_line(str(title), MOST_TITLE_CHARS)
        named = [
            DocumentEntry(
                _key(name, text), name, _n_pages(name, text), text.count("\n") + 1,
                len(text.encode()),
                about_tokens(text), (message_id, at), *used, (), (),
            )
            for at, (name, text) in enumerate(whole)
        ] + [
            DocumentEntry(_key(name, path), name, n_pages, n_lines, 0, n_tokens, (0, 0), *used, (), (),
                    path=path)
            for path, name, n_pages, n_lines, n_tokens in long if name in passages_of
        ]  # fmt: skip
        for one in named:
            key = one.key
            conversation = id_of(number)
            before = found.get(key)
            mark = f"{key} {number} {clean_line(str(began), 40)}"
            if mark in taken_off:
                continue
            if before is not None and conversation not in before.conversations:
                ids = (*before.conversations, conversation)
                marks = (*before.marks, mark)
                found[key] = replace(before, conversations=ids, marks=marks)
            elif before is None and len(found) < MOST_DOCUMENTS:
                found[key] = replace(one, conversations=(conversation,), marks=(mark,))
    return found


def _n_pages(name: str, text: str) -> int:
    if name.lower().endswith(".pdf"):
        return len(_PAGES.findall(text))
    return 0


def _files_of(message_id: int, db: sqlite3.Connection) -> tuple[list[tuple[str, str]], set[str]]:
    """Return names and texts of the whole documents of a message, and of which others it has
    passages."""
    row = db.execute("SELECT role, text, more FROM message WHERE id=?", (message_id,)).fetchone()
    whole = []
    passages_of = set[str]()
    with suppress(UnsoundError):
        for name, text in files_of(message_of(*row).text) if row is not None else ():
            if found := PASSAGE_NAME.fullmatch(name):
                passages_of.add(found[1])
            else:
                whole.append((name, text))
    return whole, passages_of


def _key(name: str, text: str) -> str:
    from hashlib import blake2b  # which no first frame waits for

    return blake2b(f"{name}\n{text}".encode(), digest_size=16).hexdigest()
