"""``jalopy sessions``: list and search conversations, and import those of other programs."""

from __future__ import annotations

import lzma
import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from app.conversations import list_rows as rows
from app.conversations.import_file import ForeignConversation, read_conversations
from app.conversations.journal import Journal
from app.conversations.mark_rows import Marks
from app.conversations.state_files import saved_bytes
from app.conversations.store import ConversationEntry, Store, now_text
from app.documents.text_file import bounded, open_file
from app.program import exit_codes
from app.program.refusals import Refusal, say
from app.text import figures
from app.text.clean_text import clean_line
from app.text.json_line import json_line

MAX_COLUMNS = 120


def sessions(words: Sequence[str], as_json: bool) -> int:
    """Print the conversations that contain all ``words``, or import files.

    Args:
        words: words to search; "import" and file names to import.

    Raises:
        Refusal: a file cannot be imported.
        StoreError: the conversations cannot be read.
    """
    if len(words) > 1 and words[0] == "import":
        return import_files(words[1:])
    store = Store()
    hits = store.search(" ".join(words))
    notice = store.take_notice()
    if as_json:
        print(json_line({"conversations": [asdict(hit) for hit in hits]}, indent=1), flush=True)
    else:
        print("\n".join(_lines(hits, bool(words))), flush=True)
    if notice:  # the database was repaired, so the list may be incomplete
        say(f"jalopy sessions: {notice}")
        return exit_codes.BAD_DATA
    return exit_codes.OK


def _lines(hits: Sequence[ConversationEntry], is_search: bool) -> list[str]:
    if not hits:
        return ["No conversation contains these words." if is_search else "No saved conversations."]
    columns = min(MAX_COLUMNS, shutil.get_terminal_size().columns)
    lines = ["number  " + rows.heading(columns - 8)]
    for hit in hits:
        lines.append(f"{int(hit.id):>6}  {rows.row(hit, columns - 8, now_text())}")
        if hit.snippet:
            lines.append(f"        ... {hit.snippet[: max(20, columns - 16)]} ...")
    text_bytes = sum(hit.text_bytes for hit in hits)
    state_bytes = Store().state_bytes(hit.id for hit in hits)
    label = figures.counted(len(hits), "conversation")
    total = f"{label}: text {figures.size(text_bytes)}, saved states {figures.size(state_bytes)}"
    all_bytes = saved_bytes()
    if all_bytes > state_bytes and not is_search:
        total += f", {figures.size(all_bytes)} with those of other text (jalopy states)"
    return [*lines, "", total]


MAX_FILE_BYTES = 256 << 20
_MAX_FILES = 10_000
"""Limit on the number of files in a folder or a ZIP archive."""
_SUFFIXES = (".json", ".jsonl")
_DAMAGE = (
    OSError,
    EOFError,
    RuntimeError,  # encrypted, or an unknown compression
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""Exceptions of damaged archives."""
_SAVING_PATIENCE_S = 60.0
_MESSAGES_PER_S = 100
"""Messages per second that even the slowest disk saves."""
_MAX_LINES = 20


def import_files(names: Sequence[str]) -> int:
    """Save the conversations in files, folders and ZIP archives, and say what was left out.

    Raises:
        Refusal: a file cannot be used, or the disk fails. Conversations before it are saved.
    """
    store = Store()
    for name in names:
        path = Path(name).expanduser()
        label = clean_line(name, 200)
        if path.is_dir():
            _import_several(_folder_files(path), label, store)
            continue
        with open_file(path) as file:
            if zipfile.is_zipfile(file):
                _import_several(_archive_files(file, label), label, store)
            else:
                file.seek(0)
                _import_file(bounded(file, MAX_FILE_BYTES, label), label, store)
    return exit_codes.OK


def _import_file(raw: bytes, label: str, store: Store) -> None:
    """Save the conversations in a file. Raises Refusal: it has none, or the disk fails."""
    try:
        n_saved, lines = _import(read_conversations(raw), store)
    except Refusal as refusal:
        raise Refusal(f"jalopy sessions: {label}: {refusal}", exit_codes.BAD_DATA) from None
    for line in lines[:_MAX_LINES]:
        say(line)
    if len(lines) > _MAX_LINES:
        say(f"... and {figures.counted(len(lines) - _MAX_LINES, 'more line')}")
    print(f"{label}: {figures.counted(n_saved, 'conversation')} imported", flush=True)


def _import_several(files: Iterable[tuple[str, bytes]], label: str, store: Store) -> None:
    """Save the conversations in several files.

    Raises:
        Refusal: no file has a conversation, or the disk fails.
    """
    n_read = 0
    refusals: list[Refusal] = []
    for name, raw in files:
        try:
            _import_file(raw, f"{label}/{clean_line(name, 200)}", store)
            n_read += 1
        except Refusal as refusal:
            if refusal.exit_code != exit_codes.BAD_DATA:
                raise
            refusals.append(refusal)
    if not n_read:
        if len(refusals) != 1:
            problem = "has no JSON file with conversations"
        else:
            problem = "its only JSON file has no conversations"
        raise Refusal(f"jalopy sessions: {label}: {problem}", exit_codes.BAD_DATA)
    if refusals:
        say(f"{label}: skipped {figures.counted(len(refusals), 'file')} without conversations")


def _folder_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each JSON file in a folder, in order of names.

    Raises:
        Refusal: there are too many files, or one cannot be read.
    """
    paths = sorted(
        islice(
            (path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES), _MAX_FILES + 1
        )
    )
    if len(paths) > _MAX_FILES:
        raise Refusal(
            f"{clean_line(str(folder), 200)}: has more than {_MAX_FILES:,} files "
            "(import its subfolders one by one)"
        )
    for path in paths:
        if path.is_file():
            with open_file(path) as file:
                yield (
                    str(path.relative_to(folder)),
                    bounded(file, MAX_FILE_BYTES, clean_line(str(path), 200)),
                )


def _archive_files(file: BinaryIO, label: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each JSON file in a ZIP archive, in order of names.

    Raises:
        Refusal: the archive is damaged, or its files are too large.
    """
    remaining_bytes = MAX_FILE_BYTES
    try:
        with zipfile.ZipFile(file) as archive:
            names = sorted(
                name for name in archive.namelist() if Path(name).suffix.lower() in _SUFFIXES
            )
            for name in names[:_MAX_FILES]:
                with archive.open(name) as member:
                    raw = member.read(remaining_bytes + 1)
                remaining_bytes -= len(raw)
                if remaining_bytes < 0:
                    size = f"{MAX_FILE_BYTES >> 20} MiB"
                    raise Refusal(
                        f"{label}: contains more than {size} (unpack it and import its files)"
                    )
                yield name, raw
    except _DAMAGE as error:
        reason = clean_line(str(error), 80)
        raise Refusal(
            f"{label}: cannot be unpacked: {reason} (unpack it yourself and import its files)"
        ) from None


def _import(conversations: Iterable[ForeignConversation], store: Store) -> tuple[int, list[str]]:
    n_saved = 0
    lines = []
    for number, foreign in enumerate(conversations, 1):
        name = f"conversation {number}{f' ({foreign.title})' if foreign.title else ''}"
        if not foreign.conversation.is_empty:
            _save(foreign, store)
            n_saved += 1
        elif not foreign.left_out:
            lines.append(f"{name}: skipped, since it is empty")
        for description, n in foreign.left_out.items():
            lines.append(f"{name}: left out {_counted(n, description)}")
    return n_saved, lines


def _counted(n: int, description: str) -> str:
    """Return a count with the first noun in the plural: "2 messages of another branch"."""
    noun, space, remainder = description.partition(" ")
    if n != 1:
        noun = {"entry": "entries", "reply's": "replies'", "branch": "branches"}.get(
            noun, f"{noun}s"
        )
    return f"{figures.count(n)} {noun}{space}{remainder}"


def _save(foreign: ForeignConversation, store: Store) -> None:
    journal = Journal(store, (lambda: foreign.began) if foreign.began else now_text)
    journal.begin(title=foreign.title)
    journal.set_model(foreign.model, "")
    journal.save_turn_end(foreign.conversation)
    if foreign.marks != Marks():
        journal.change_marks(foreign.marks)
    patience_s = _SAVING_PATIENCE_S + len(foreign.conversation.messages) / _MESSAGES_PER_S
    if trouble := journal.close(patience_s):
        raise Refusal(f"not saved: {trouble} (jalopy sessions lists those that are)")
