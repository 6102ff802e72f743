"""The list of documents: every document that was sent with a message, whole or in passages.

The text of a whole document is only in its message. A document is listed as long as a saved
conversation has it and it was not removed from that conversation's list. For a document that was
sent in passages, the path of its file is saved, and the file is read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.conversations.locks import StoreError
from app.conversations.message_row import UnsoundError, message_of
from app.conversations.older_files import save_long_document
from app.conversations.store import IS_CONVERSATION, MOST_TITLE_CHARS, Store, id_of, size_of
from app.conversations.tables import has_table
from app.conversations.upkeep import run_transaction
from app.documents.read import MOST_CHARS, Document, about_tokens
from app.documents.text_file import PAGE_LINE, PASSAGE_NAME, files_of
from app.text.clean_text import clean_line
from app.text.figures import counted
from app.text.record import record

if TYPE_CHECKING:
    import sqlite3

MOST_DOCUMENTS = 200
_BEGINS_WITH_FILE = '{"folded":"[file\\u00a0'
"""Start of the JSON column of a message that begins with the chip of a file."""
_PAGES = re.compile(rf"^{PAGE_LINE.pattern}$", re.MULTILINE)


@record
class DocumentEntry:
    """A document of the list, without its text."""

    key: str
    """Hash of the name and the text, or of the name and the path if it was sent in passages."""
    name: str
    n_pages: int
    """Number of pages; 0 if the document has none."""
    n_lines: int
    text_bytes: int
    about_tokens: int
    message_id: int
    """Row of the message with the text; 0 if the document was sent in passages."""
    file_index: int
    """Position of the document among the whole files of that message."""
    changed: str
    """Time at which the last conversation with the document changed: ISO, only for display."""
    title: str
    """Title of that conversation."""
    conversations: tuple[str, ...]
    """Ids of the conversations with the document, the last used first."""
    states_bytes: int = 0
    """Size of the saved states of these conversations; shared files count once."""
    path: str = ""
    """Path of a document that was sent in passages; "" if it was sent whole."""
    first_name: str = ""
    """Name of the first document of the message if this is a later one; "" if this is the first.

    The saved state of a later document serves only messages that begin with the same documents.
    """

    @property
    def extent(self) -> str:
        """Length in words: "12 pages", "340 lines"."""
        if self.n_pages:
            return counted(self.n_pages, "page")
        return counted(self.n_lines, "line")


def list_documents(store: Store) -> tuple[DocumentEntry, ...]:
    """Return all documents, the last used first. Raises StoreError."""
    entries = store.select(_entries) or []
    segments = store.segments_of(
        [int(number) for entry in entries for number in entry.conversations]
    )

    def states_bytes(entry: DocumentEntry) -> int:
        files = set[Path]().union(
            *(segments.get(int(number), ()) for number in entry.conversations)
        )
        return sum(map(size_of, files))

    return tuple(replace(entry, states_bytes=states_bytes(entry)) for entry in entries)


def load_document(store: Store, entry: DocumentEntry) -> Document:
    """Return a document with its text.

    Raises StoreError: the document is no longer listed.
    """

    def read_files(db: sqlite3.Connection) -> list[tuple[str, str]]:
        return _files_of(db, entry.message_id)[0]

    files = store.select(read_files) or []
    for name, text in files[entry.file_index : entry.file_index + 1]:
        if _key(name, text) == entry.key:
            return Document(name, Path(name), text, about_tokens(text))
    raise StoreError(f"{clean_line(entry.name, 80)} is no longer in the list of documents")


def remove_document(store: Store, entry: DocumentEntry, needed_files: Iterable[Path] = ()) -> None:
    """Remove a document from the list and delete its saved states.

    A conversation with nothing but the document is deleted; other conversations keep the text.

    Args:
        needed_files: saved states of other documents in the same conversations.

    Raises:
        StoreError: the document stays in the list.
    """
    numbers = set(map(int, entry.conversations))
    segments = store.segments_of([int(conversation_id) for conversation_id in store.ids()])
    shared = set(needed_files).union(
        *(files for number, files in segments.items() if number not in numbers)
    )
    for path in set().union(*(segments.get(number, ()) for number in numbers)) - shared:
        with suppress(OSError):
            path.unlink()

    if entry.path:
        only_text = None
    else:
        only_text = load_document(store, entry).in_message.strip()
    remaining: list[int] = []
    for conversation_id in entry.conversations:
        with suppress(StoreError):  # the conversation is deleted or in use
            messages = store.read(conversation_id).conversation.messages
            if [message.text.strip() for message in messages] == [only_text]:
                store.delete(conversation_id)
                continue
        remaining.append(int(conversation_id))

    def remove(db: sqlite3.Connection) -> None:
        _require_upgraded(db)
        db.executemany(
            "INSERT OR IGNORE INTO removed_document SELECT id, ? FROM conversation WHERE id=?",
            [(entry.key, number) for number in remaining],
        )
        db.execute("DELETE FROM long_document WHERE path=?", (entry.path,))

    try:
        run_transaction(store.root, remove, writes=True)
    except StoreError as error:
        raise StoreError(f"not deleted: {error}") from None


def save_long_documents(store: Store, documents: Sequence[Document]) -> None:
    """Save the paths of documents whose passages are sent with a message."""

    def save(db: sqlite3.Connection) -> None:
        _require_upgraded(db)
        for document in documents:
            n_pages = _n_pages(document.name, document.text)
            n_lines = document.text.count("\n") + 1
            n_tokens = about_tokens(document.text)
            save_long_document(db, str(document.path), document.name, n_pages, n_lines, n_tokens)
        db.execute(
            "DELETE FROM long_document WHERE id NOT IN "
            "(SELECT id FROM long_document ORDER BY id DESC LIMIT ?)",
            (MOST_DOCUMENTS,),
        )

    with suppress(StoreError):  # the documents are not listed then
        run_transaction(store.root, save, writes=True)


def _require_upgraded(db: sqlite3.Connection) -> None:
    if not has_table(db, "long_document"):
        raise StoreError("the saved conversations cannot be upgraded now")


def _entries(db: sqlite3.Connection) -> list[DocumentEntry]:
    """Return the documents of all messages, the last used first."""
    long_documents: list[tuple[str, str, int, int, int]] = []
    removed: set[tuple[int, str]] = set()
    if has_table(db, "long_document"):
        columns = "path, name, n_pages, n_lines, n_tokens"
        rows = db.execute(f"SELECT {columns} FROM long_document ORDER BY id").fetchall()
        long_documents = [
            row for row in rows if [type(v) for v in row] == [str, str, int, int, int]
        ]
        removed = set(db.execute("SELECT conversation, key FROM removed_document"))
    entries: dict[str, DocumentEntry] = {}
    n_chars = 0
    sql = (
        "SELECT m.id, c.id, c.title, c.changed FROM conversation c JOIN message m ON "
        "m.conversation=c.id"
        f" WHERE c.{IS_CONVERSATION} AND m.role='user' AND substr(m.more, 1, ?)=?"
        " ORDER BY c.used DESC, c.id DESC, m.place DESC"
    )
    values = (len(_BEGINS_WITH_FILE), _BEGINS_WITH_FILE)
    for message_id, number, title, changed in db.execute(sql, values).fetchall():
        files: list[tuple[str, str]] = []
        cut_names: set[str] = set()
        if n_chars < MOST_CHARS:
            files, cut_names = _files_of(db, message_id)
        n_chars += sum(len(text) for _, text in files)
        usage = (
            clean_line(str(changed), 40),
            clean_line(str(title), MOST_TITLE_CHARS),
            (id_of(number),),
        )
        candidates = [
            DocumentEntry(
                _key(name, text),
                name,
                _n_pages(name, text),
                text.count("\n") + 1,
                len(text.encode()),
                about_tokens(text),
                message_id,
                file_index,
                *usage,
                first_name=files[0][0] if file_index else "",
            )
            for file_index, (name, text) in enumerate(files)
        ]
        candidates += [
            DocumentEntry(
                _key(name, path), name, n_pages, n_lines, 0, n_tokens, 0, 0, *usage, path=path
            )
            for path, name, n_pages, n_lines, n_tokens in long_documents
            if name in cut_names
        ]
        for candidate in candidates:
            if (number, candidate.key) not in removed:
                _add_entry(entries, candidate)
    return list(entries.values())


def _add_entry(entries: dict[str, DocumentEntry], candidate: DocumentEntry) -> None:
    """Add a document, or its conversation to the entry that it has already."""
    entry = entries.get(candidate.key)
    if entry is None:
        if len(entries) < MOST_DOCUMENTS:
            entries[candidate.key] = candidate
    elif candidate.conversations[0] not in entry.conversations:
        conversations = entry.conversations + candidate.conversations
        entries[candidate.key] = replace(entry, conversations=conversations)


def _n_pages(name: str, text: str) -> int:
    if name.lower().endswith(".pdf"):
        return len(_PAGES.findall(text))
    return 0


def _files_of(db: sqlite3.Connection, message_id: int) -> tuple[list[tuple[str, str]], set[str]]:
    """Return the whole documents of a message by name and text, and the names of those it has
    passages of."""
    row = db.execute("SELECT role, text, more FROM message WHERE id=?", (message_id,)).fetchone()
    files: list[tuple[str, str]] = []
    cut_names: set[str] = set()
    if row is None:
        return files, cut_names
    with suppress(UnsoundError):
        for name, text in files_of(message_of(*row).text):
            match = PASSAGE_NAME.fullmatch(name)
            if match is not None:
                cut_names.add(match[1])
            else:
                files.append((name, text))
    return files, cut_names


def _key(name: str, text: str) -> str:
    from hashlib import blake2b  # the first frame does not need it

    return blake2b(f"{name}\n{text}".encode(), digest_size=16).hexdigest()
