"""Regular files opened without waiting; their text cleaned, set off in a message, and found again there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from app.documents.encoding import decoded
from app.program.refusals import Refusal
from app.text.clean_text import clean_line, clean_text
from engine.machine.regular_file import open_regular

MAX_FILE_BYTES = 8 << 20
"""About two million tokens: more than a context on the machines this is made for; passages of it may fit."""
FAILED = 3
"""Exit code of the process where it writes a reason and no text."""
MAX_SOURCE_BYTES = 64 << 20
"""Limit on a PDF or DOCX file, and on what a DOCX file's text unpacks to."""
MAX_TEXT_CHARS = 8 << 20
PAGE_LINE = re.compile(r"\[page (\d+)\]")
"""The line before each page of a PDF."""
_HEADING = re.compile(r"(.{1,200}):\n(`{3,})\n")
PASSAGE_NAME = re.compile(r"(.+), ((line|page)s? (\d+)(?:-(\d+))?)")
"""What a passage is named: its document, and its place there."""


def read_text_file(path: Path) -> str:
    """Return a file's text, cleaned. Raises Refusal: it is too large, empty, no text, or cannot be read."""
    shown = clean_line(str(path), 200)
    with open_file(path) as file:
        raw = bounded(file, MAX_FILE_BYTES, shown)
    return cleaned(decoded(raw, shown), shown)


def open_file(path: Path) -> BinaryIO:
    """Open a regular file and wait for nothing. Raises Refusal: it cannot be read, or is no regular file."""
    try:
        return open_regular(path, follows_links=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "is not a path"
        raise Refusal(f"{clean_line(str(path), 200)}: {reason} (name a text file)") from error


def bounded(file: BinaryIO, most_bytes: int, shown: str) -> bytes:
    """Return all bytes of a file. Raises Refusal: there are more than ``most_bytes``, or the disk fails."""
    try:
        raw: bytes | None = file.read(most_bytes + 1)
    except OSError as error:
        raise Refusal(f"{shown}: {error.strerror} (copy it to another disk)") from error
    if raw is None:  # of what another program writes meanwhile
        raise Refusal(f"{shown}: has nothing to read now (copy it to a file)")
    if len(raw) > most_bytes:
        raise Refusal(f"{shown}: is larger than {most_bytes >> 20} MiB, the most that is read of a file (cut it first)")
    return raw


def cleaned(text: str, shown: str) -> str:
    """Return the text as it may reach a terminal, without empty lines around it. Raises Refusal: it is empty."""
    text = clean_text(text).strip("\n")
    if not text.strip():
        raise Refusal(f"{shown}: is empty")
    return text


def attached(name: str, text: str) -> str:
    """Return a file as it is in a message: its name, then its text between fences longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{clean_line(name, 120)}:\n{fence}\n{text}\n{fence}\n"


class BoundedText:
    """Pieces of text up to a limit."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._room = MAX_TEXT_CHARS

    @property
    def n_chars(self) -> int:
        """How much there is."""
        return MAX_TEXT_CHARS - self._room

    def add(self, piece: str) -> None:
        """Append a piece. Raises Refusal: it is too much."""
        self._room -= len(piece)
        if self._room < 0:
            raise Refusal(f"holds more than {MAX_TEXT_CHARS >> 20} million characters (cut it first)")
        self._pieces.append(piece)

    def joined(self) -> str:
        """Return all of it."""
        return "".join(self._pieces)


def files_of(message: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of the files and passages that a message begins with, as ``attached`` put them there."""
    at = 0
    while heading := _HEADING.match(message, at):
        fence = f"\n{heading[2]}"
        end = message.find(f"{fence}\n", heading.end() - 1)
        if end < 0:  # nothing was asked after it
            end = len(message) - len(fence) if message.endswith(fence) else 0
        name, text = heading[1], message[heading.end() : end]
        if attached(name, text)[:-1] != message[at : end + len(fence)]:
            break
        yield name, text
        at = end + len(fence) + 1
        at += message.startswith(" ", at)


def sources_of(message: str) -> tuple[str, ...]:
    """Return the places of the passages that a message begins with."""
    found = (PASSAGE_NAME.fullmatch(name) for name, _ in files_of(message))
    return tuple(f"{one[1]} {one[2]}" for one in found if one is not None)
