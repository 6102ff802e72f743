"""Text files: opened without waiting, cleaned, wrapped in fences for a message, and found again
there.
"""

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
from engine.machine.files import open_regular

FAILED = 3
"""Exit code of the converting process if it writes a reason instead of text."""
MAX_SOURCE_BYTES = 64 << 20
"""Limit on a file, and on the unpacked text of a DOCX file."""
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
"""A file embedded in a text as a data URL."""
_DRAWING = re.compile(r"<svg[\s>](?:(?!<svg[\s>]).)*?</svg\s*>", re.I | re.S)
_WITH_DRAWINGS = frozenset((".md", ".markdown", ".mdx", ".qmd", ".rmd"))
_LEAST_DRAWING_CHARS = 1000
"""Shorter drawings are kept, because their source may be readable."""
_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]{0,2000}(?:\x07|\x1b\\)|[()][0-9A-Z])"
)
"""Colours and titles that programs write into logs."""
_VISIBLE = re.compile(f"[^\\s{INVISIBLE}]")
_HEADING = re.compile(r"(.{1,200}):\n(`{3,})\n")
PASSAGE_NAME = re.compile(r"(.+), ((line|page)s? (\d+)(?:-(\d+))?)")
"""Name of a passage: its document and its location there."""


def read_text_file(path: Path, takes_pipe: bool = False) -> str:
    """Return the clean text of a file.

    Args:
        takes_pipe: whether the file may be a pipe, whose end is waited for.

    Raises Refusal: it is too large, empty or not text, or cannot be read.
    """
    name = clean_line(str(path), 200)
    with open_file(path, takes_pipe) as file:
        raw = bounded(file, MAX_SOURCE_BYTES, name)
    suffix = path.suffix.lower()
    try:
        refuse_unsupported(suffix, raw[:HEAD_BYTES])
        text = decoded(raw, name)
    except NotTextError:
        raise Refusal(f"{name}: {advice_for(suffix)}") from None
    except KindRefusal as refusal:
        raise Refusal(f"{name}: {refusal}") from None
    text = without_data(text)
    if suffix in _WITH_DRAWINGS:
        text = _DRAWING.sub(_drawing_note, text)
    return cleaned(text, name)


def without_data(text: str) -> str:
    """Return the text with notes in place of embedded files."""
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


def open_file(path: Path, takes_pipe: bool = False) -> BinaryIO:
    """Open a regular file without waiting, or a pipe if ``takes_pipe`` is true.

    Raises Refusal: it cannot be read or is something else.
    """
    try:
        if takes_pipe and path.is_fifo():
            return path.open("rb")
        return open_regular(path, follows_links=True)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        else:
            reason = "is not a path"
        raise Refusal(f"{clean_line(str(path), 200)}: {reason} (name a text file)") from error


def bounded(file: BinaryIO, most_bytes: int, name: str, is_beginning: bool = False) -> bytes:
    """Return all bytes of a file, or only its first bytes.

    Raises:
        Refusal: the file has more than ``most_bytes`` and all are needed, or the disk fails.
    """
    try:
        raw: bytes | None = file.read(most_bytes + (not is_beginning))
    except OSError as error:
        raise Refusal(f"{name}: {error.strerror} (copy it to another disk)") from error
    if raw is None:  # another program writes to the file
        raise Refusal(f"{name}: has nothing to read now (copy it to a file)")
    if len(raw) > most_bytes:
        raise Refusal(f"{name}: is larger than {most_bytes >> 20} MiB, the limit (cut it first)")
    return raw


def cleaned(text: str, name: str) -> str:
    """Return the text cleaned for a terminal, without empty lines around it.

    Raises Refusal: it is empty.
    """
    if "\x1b" in text:
        text = _ESCAPE_SEQUENCE.sub("", text)
    text = text.replace("\x0b", "\n").replace("\x0c", "\n")
    text = clean_text(plain_letters(text)).strip("\n")
    if not _VISIBLE.search(text):
        raise Refusal(f"{name}: is empty")
    return text


def attached(name: str, text: str) -> str:
    """Return a file as text for a message: its name, and its text between fences longer than any in
    it.
    """
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{clean_line(name, 120)}:\n{fence}\n{text}\n{fence}\n"


class TextFullError(Refusal):
    """A document has more text than the limit."""


class BoundedText:
    """Pieces of text up to a limit.

    Attributes:
        notes: lines about omitted content.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._pieces: list[str] = []
        self._left = MAX_TEXT_CHARS

    @property
    def n_chars(self) -> int:
        """Number of characters so far."""
        return MAX_TEXT_CHARS - self._left

    def add(self, piece: str) -> None:
        """Add a piece. Raises TextFullError: the limit is exceeded."""
        self._left -= len(piece)
        if self._left < 0:
            raise TextFullError(
                f"has more than {MAX_TEXT_CHARS >> 20} million characters (cut it first)"
            )
        self._pieces.append(piece)

    def joined(self) -> str:
        """Return the whole text."""
        return "".join(self._pieces)


def files_of(message: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of the files and passages at the beginning of a message."""
    position = 0
    while heading := _HEADING.match(message, position):
        fence = f"\n{heading[2]}"
        end = message.find(f"{fence}\n", heading.end() - 1)
        if end < 0:  # the message has nothing after the file
            if message.endswith(fence):
                end = len(message) - len(fence)
            else:
                end = 0
        name = heading[1]
        text = message[heading.end() : end]
        if attached(name, text)[:-1] != message[position : end + len(fence)]:
            break
        yield name, text
        position = end + len(fence) + 1
        position += message.startswith(" ", position)


def sources_of(message: str) -> tuple[str, ...]:
    """Return the locations of the passages at the beginning of a message."""
    matches = (PASSAGE_NAME.fullmatch(name) for name, _ in files_of(message))
    return tuple(f"{match_[1]} {match_[2]}" for match_ in matches if match_ is not None)
