"""Regular files opened without waiting; their text cleaned, set off in a message, and found again
there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from app.documents.encoding import NotTextError, decoded
from app.documents.file_types import HEAD_BYTES, KindRefusal, advice_for, refuse_unsupported
from app.documents.plain_letters import plain_letters
from app.program.refusals import Refusal
from app.text.clean_text import INVISIBLE, clean_line, clean_text
from app.text.figures import size
from engine.machine.regular_file import open_regular

FAILED = 3
"""Exit code of the process where it writes a reason and no text."""
MAX_SOURCE_BYTES = 64 << 20
"""Limit on a file, and on what a DOCX file's text unpacks to.

Passages of so much may fit into a context.
"""
MAX_TEXT_CHARS = 64 << 20
PAGE_LINE = re.compile(r"\[page (\d+)\]")
"""The line before each page of a PDF."""
_DATA = re.compile(
    (
        r"data:([a-z]{1,20}/[a-z0-9.+-]{1,80})?"
        r"(?:;[a-z0-9=_.+-]{1,80}){0,5},([a-z0-9+/=%_.~!*$&:@-]{300,})"
    ),
    re.I,
)
"""A file that is written as letters into a text."""
_DRAWING = re.compile(r"<svg[\s>](?:(?!<svg[\s>]).)*?</svg\s*>", re.I | re.S)
_WITH_DRAWINGS = frozenset((".md", ".markdown", ".mdx", ".qmd", ".rmd"))
_LEAST_DRAWING_CHARS = 1000
"""Shorter drawings may say something in their source."""
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]{0,2000}(?:\x07|\x1b\\)|[()][0-9A-Z])"
)
"""Colours and titles that programs write into logs."""
_VISIBLE = re.compile(f"[^\\s{INVISIBLE}]")
_HEADING = re.compile(r"(.{1,200}):\n(`{3,})\n")
PASSAGE_NAME = re.compile(r"(.+), ((line|page)s? (\d+)(?:-(\d+))?)")
"""What a passage is named: its document, and its place there."""


def read_text_file(path: Path) -> str:
    """Return a file's text, cleaned.

    Raises Refusal: it is too large, empty, no text, or cannot be read.
    """
    shown = clean_line(str(path), 200)
    with open_file(path) as file:
        raw = bounded(file, MAX_SOURCE_BYTES, shown)
    suffix = path.suffix.lower()
    try:
        refuse_unsupported(suffix, raw[:HEAD_BYTES])
        text = decoded(raw, shown)
    except NotTextError:
        raise Refusal(f"{shown}: {advice_for(suffix)}") from None
    except KindRefusal as refusal:
        raise Refusal(f"{shown}: {refusal}") from None
    text = without_data(text)
    if suffix in _WITH_DRAWINGS:
        text = _DRAWING.sub(_drawing_note, text)
    return cleaned(text, shown)


def without_data(text: str) -> str:
    """Return the text without the files that are written into it as letters.

    In place of each picture or other file there is a note.
    """
    if "data:" in text or "DATA:" in text:
        return _DATA.sub(_data_note, text)
    return text


def _data_note(match: re.Match[str]) -> str:
    if match[0][:60].lower().find(";base64") >= 0:
        n_bytes = len(match[2]) * 3 // 4
    else:
        n_bytes = len(match[2])
    return f"[{match[1] or 'data'}, {size(n_bytes)}, left out]"


def _drawing_note(match: re.Match[str]) -> str:
    if len(match[0]) > _LEAST_DRAWING_CHARS:
        return f"[drawing, {size(len(match[0]))}, left out]"
    return match[0]


def open_file(path: Path) -> BinaryIO:
    """Open a regular file and wait for nothing.

    Raises Refusal: it cannot be read, or is no regular file.
    """
    try:
        return open_regular(path, follows_links=True)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        else:
            reason = "is not a path"
        raise Refusal(f"{clean_line(str(path), 200)}: {reason} (name a text file)") from error


def bounded(file: BinaryIO, most_bytes: int, shown: str, is_beginning: bool = False) -> bytes:
    """Return all bytes of a file, or so many from its beginning.

    Raises:
        Refusal: there are more than ``most_bytes``, and all are wanted; or the disk fails.
    """
    try:
        raw: bytes | None = file.read(most_bytes + (not is_beginning))
    except OSError as error:
        raise Refusal(f"{shown}: {error.strerror} (copy it to another disk)") from error
    if raw is None:  # of what another program writes meanwhile
        raise Refusal(f"{shown}: has nothing to read now (copy it to a file)")
    if len(raw) > most_bytes:
        raise Refusal(
            f"{shown}: is larger than {most_bytes >> 20} MiB, the most that is read of a file "
            "(cut it first)"
        )
    return raw


def cleaned(text: str, shown: str) -> str:
    """Return the text as it may reach a terminal, without empty lines around it.

    Raises Refusal: it is empty.
    """
    if "\x1b" in text:
        text = _ESCAPE_SEQUENCE.sub("", text)
    text = text.replace("\x0b", "\n").replace("\x0c", "\n")
    text = clean_text(plain_letters(text)).strip("\n")
    if not _VISIBLE.search(text):
        raise Refusal(f"{shown}: is empty")
    return text


def attached(name: str, text: str) -> str:
    """Return a file as it is in a message: its name, then its text between fences longer than any
    in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{clean_line(name, 120)}:\n{fence}\n{text}\n{fence}\n"


class TextFullError(Refusal):
    """A document has more text than is taken."""


class BoundedText:
    """Pieces of text up to a limit.

    Attributes:
        notes: what was left out of the text, a line each.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._pieces: list[str] = []
        self._room = MAX_TEXT_CHARS

    @property
    def n_chars(self) -> int:
        """How much there is."""
        return MAX_TEXT_CHARS - self._room

    def add(self, piece: str) -> None:
        """Append a piece. Raises TextIsFull: it is too much."""
        self._room -= len(piece)
        if self._room < 0:
            raise TextFullError(
                f"holds more than {MAX_TEXT_CHARS >> 20} million characters (cut it first)"
            )
        self._pieces.append(piece)

    def joined(self) -> str:
        """Return all of it."""
        return "".join(self._pieces)


def files_of(message: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of the files and passages that a message begins with, as ``attached`` put
    them there."""
    at = 0
    while heading := _HEADING.match(message, at):
        fence = f"\n{heading[2]}"
        end = message.find(f"{fence}\n", heading.end() - 1)
        if end < 0:  # nothing was asked after it
            if message.endswith(fence):
                end = len(message) - len(fence)
            else:
                end = 0
        name = heading[1]
        text = message[heading.end() : end]
        if attached(name, text)[:-1] != message[at : end + len(fence)]:
            break
        yield name, text
        at = end + len(fence) + 1
        at += message.startswith(" ", at)


def sources_of(message: str) -> tuple[str, ...]:
    """Return the places of the passages that a message begins with."""
    found = (PASSAGE_NAME.fullmatch(name) for name, _ in files_of(message))
    return tuple(f"{one[1]} {one[2]}" for one in found if one is not None)
