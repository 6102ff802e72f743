"""``jalopy sessions``: the saved conversations, and import of other programs' ones.

No Textual, no engine.
"""

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
from app.conversations.store import ConversationEntry, Store, now_text
from app.documents.text_file import bounded, open_file
from app.program import exit_codes
from app.program.refusals import Refusal, say
from app.text import figures
from app.text.clean_text import clean_line
from app.text.json_line import json_line

MOST_COLUMNS = 120


def sessions(words: Sequence[str], as_json: bool) -> int:
    """Find and print; ``import FILE ...`` takes conversations over.

    Raises:
        Refusal: a file that is to be imported cannot be used.
        StoreError: the conversations cannot be read.
    """
    if len(words) > 1 and words[0] == "import":
        return import_files(words[1:])
    store = Store()
    hits = store.search(" ".join(words))
    mended = store.take_notice()
    if as_json:
        print(json_line({"conversations": [asdict(hit) for hit in hits]}, indent=1), flush=True)
    else:
        print("\n".join(_lines(hits, bool(words))), flush=True)
    if mended:  # the list may lack something
        say(f"jalopy sessions: {mended}")
        return exit_codes.BAD_DATA
    return exit_codes.OK


def _lines(hits: Sequence[ConversationEntry], is_search: bool) -> list[str]:
    if not hits:
        return ["No conversation has these words." if is_search else "No conversation is saved."]
    columns = min(MOST_COLUMNS, shutil.get_terminal_size().columns)
    lines = ["number  " + rows.heading(columns - 8)]
    for hit in hits:
        lines.append(f"{int(hit.id):>6}  {rows.row(hit, columns - 8, now_text())}")
        if hit.snippet:
            lines.append(f"        ... {hit.snippet[: max(20, columns - 16)]} ...")
    text_bytes = sum(hit.text_bytes for hit in hits)
    state_bytes = Store().state_bytes(hit.id for hit in hits)
    shown = figures.counted(len(hits), "conversation")
    lines += [
        "",
        f"{shown}: text {figures.size(text_bytes)}, saved states {figures.size(state_bytes)}",
    ]
    return lines


MOST_FILE_BYTES = 256 << 20
_MOST_FILES = 10_000
"""Limit on the files of a folder or a ZIP archive."""
_KINDS = (".json", ".jsonl")
_DAMAGE = (
    OSError,
    EOFError,
    RuntimeError,  # it is encrypted, or packed in another way
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
"""Exceptions at archives that are damaged."""
_SAVING_PATIENCE_S = 60.0
_MESSAGES_PER_S = 100
"""Fewer than the slowest disk saves."""
_MOST_LINES = 20


def import_files(names: Sequence[str]) -> int:
    """Save every conversation of these files, folders and ZIP archives as a new one.

    Say what was left out.

    Raises:
        Refusal: a file cannot be used, or the disk fails; what came before it is saved.
    """
    store = Store()
    for name in names:
        path = Path(name).expanduser()
        shown = clean_line(name, 200)
        if path.is_dir():
            _import_several(_folder_files(path), shown, store)
            continue
        with open_file(path) as file:
            if zipfile.is_zipfile(file):
                _import_several(_archive_files(file, shown), shown, store)
            else:
                file.seek(0)
                _import_file(bounded(file, MOST_FILE_BYTES, shown), shown, store)
    return exit_codes.OK


def _import_file(raw: bytes, shown: str, store: Store) -> None:
    """Save the conversations of a file. Raises Refusal: it holds none, or the disk fails."""
    try:
        n_saved, lines = _import(read_conversations(raw), store)
    except Refusal as refusal:
        raise Refusal(f"jalopy sessions: {shown}: {refusal}", exit_codes.BAD_DATA) from None
    for line in lines[:_MOST_LINES]:
        say(line)
    if len(lines) > _MOST_LINES:
        say(f"... and {figures.counted(len(lines) - _MOST_LINES, 'line')} like these")
    print(f"{shown}: {figures.counted(n_saved, 'conversation')} imported", flush=True)


def _import_several(files: Iterable[tuple[str, bytes]], shown: str, store: Store) -> None:
    """Save the conversations of files, of which some may hold none.

    Raises:
        Refusal: no file holds any.
    """
    n_read = 0
    refused: list[Refusal] = []
    for name, raw in files:
        try:
            _import_file(raw, f"{shown}/{clean_line(name, 200)}", store)
            n_read += 1
        except Refusal as refusal:
            if refusal.exit_code != exit_codes.BAD_DATA:
                raise
            refused.append(refusal)
    if not n_read:
        if len(refused) != 1:
            words = "holds no JSON file with conversations"
        else:
            words = "its only JSON file holds none"
        raise Refusal(f"jalopy sessions: {shown}: {words}", exit_codes.BAD_DATA)
    if refused:
        say(f"{shown}: left out {figures.counted(len(refused), 'file')} without conversations")


def _folder_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the JSON files within a folder, in order.

    Raises:
        Refusal: there are too many, or one cannot be read.
    """
    paths = sorted(
        islice(
            (path for path in folder.rglob("*") if path.suffix.lower() in _KINDS), _MOST_FILES + 1
        )
    )
    if len(paths) > _MOST_FILES:
        raise Refusal(
            f"{clean_line(str(folder), 200)}: has more than {_MOST_FILES:,} files "
            "(import parts of it)"
        )
    for path in paths:
        if path.is_file():
            with open_file(path) as file:
                yield (
                    str(path.relative_to(folder)),
                    bounded(file, MOST_FILE_BYTES, clean_line(str(path), 200)),
                )


def _archive_files(file: BinaryIO, shown: str) -> Iterator[tuple[str, bytes]]:
    """Yield the JSON files of a ZIP archive, in order.

    Raises:
        Refusal: it is damaged, or what is in it is too large.
    """
    left_bytes = MOST_FILE_BYTES
    try:
        with zipfile.ZipFile(file) as archive:
            names = sorted(
                name for name in archive.namelist() if Path(name).suffix.lower() in _KINDS
            )
            for name in names[:_MOST_FILES]:
                with archive.open(name) as member:
                    raw = member.read(left_bytes + 1)
                left_bytes -= len(raw)
                if left_bytes < 0:
                    size = f"{MOST_FILE_BYTES >> 20} MiB"
                    raise Refusal(
                        f"{shown}: holds more than {size} (unpack it and import its files)"
                    )
                yield name, raw
    except _DAMAGE as error:
        reason = clean_line(str(error), 80)
        raise Refusal(
            f"{shown}: cannot be unpacked: {reason} (unpack it and import its files)"
        ) from None


def _import(found: Iterable[ForeignConversation], store: Store) -> tuple[int, list[str]]:
    n_saved = 0
    lines = []
    for number, foreign in enumerate(found, 1):
        name = f"conversation {number}{f' ({foreign.title})' if foreign.title else ''}"
        if not foreign.conversation.is_empty:
            _save(foreign, store)
            n_saved += 1
        elif not foreign.left_out:
            lines.append(f"{name}: left out, nothing is said in it")
        for what, n in foreign.left_out.items():
            lines.append(f"{name}: left out {_counted(n, what)}")
    return n_saved, lines


def _counted(n: int, what: str) -> str:
    """Write a count of things whose noun comes first: "2 messages of another branch"."""
    noun, space, rest = what.partition(" ")
    if n != 1:
        noun = {"entry": "entries", "reply's": "replies'"}.get(noun, f"{noun}s")
    return f"{figures.count(n)} {noun}{space}{rest}"


def _save(foreign: ForeignConversation, store: Store) -> None:
    journal = Journal(store, (lambda: foreign.began) if foreign.began else now_text)
    journal.begin(title=foreign.title)
    journal.save_turn_end(foreign.conversation)
    patience_s = _SAVING_PATIENCE_S + len(foreign.conversation.messages) / _MESSAGES_PER_S
    if trouble := journal.close(patience_s):
        raise Refusal(f"not saved: {trouble} (what is listed by jalopy sessions is)")
