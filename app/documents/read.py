"""Documents by name: files, folders and patterns.

A file that cannot be used costs one line, not the rest.
"""

from __future__ import annotations

import glob
import json
import os
import re
import select
import signal
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from app.documents import pictures
from app.documents.file_types import HEAD_BYTES, WORD, ZIPPED, KindRefusal, refuse_unsupported
from app.documents.text_file import (
    FAILED,
    MAX_SOURCE_BYTES,
    MAX_TEXT_CHARS,
    attached,
    bounded,
    cleaned,
    open_file,
    read_text_file,
)
from app.program.paths import own_module
from app.program.refusals import Refusal
from app.text.clean_text import clean_line
from app.text.figures import counted, size
from app.text.record import record

KINDS = WORD.union(
    (".html", ".htm", ".xhtml", ".mhtml", ".mht", ".eml", ".doc", ".dot", ".rtf", ".ipynb", ".pdf"),
    *ZIPPED.values(),
)
"""Suffixes of files that a process of its own converts. Other files are read as text."""
MOST_FILES = 1000
MOST_CHARS = MAX_TEXT_CHARS
"""Limit on the text of all documents together."""
CPU_S = 30
"""Processor time for converting a file. A book of a thousand pages takes less on an old machine."""
MOST_S = 600.0
"""Time after which no further file is read."""
_TICK_S = 0.1
_FILES_PER_TICK = 500
_CHUNK_BYTES = 1 << 20
_MOST_ENTRIES = 50_000
_MOST_LINES = 8
_MOST_DESCRIBED = 3
_REFERENCE = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
_REFERENCE_BEGUN = re.compile(r'(?<!\S)@(?:"([^"\n]*)"?|((?:[^\s"]\S*)?))')
_PIECE = re.compile(r"[a-zA-Z]{1,9}|[^\W\d_a-zA-Z]{1,3}|\d{1,3}|[^\w\s]{1,3}|_|\n\s*")
_SAMPLE_CHARS = 1 << 15
_USUAL_TEXT = """The steamer left the harbour at 7:45 on Thursday, 3 March 1921, \
with 214 passengers; \
most slept badly.
"Where is the captain?" asked Mrs. Whitfield, who wasn't easily persuaded. No one answered. \
Temperature, pressure and
humidity had been measured since 1898, although the instruments (two barometers, a hygrometer) \
were unreliable.

- Configuration: see https://example.org/docs/install.html, version 2.10.3
- Availability depends on manufacturers, governments and international agreements.

def read_values(path: str, limit: int = 100) -> list[float]:
    with open(path, encoding="utf-8") as file:
        return [float(line.split(",")[0]) for line in file if line.strip()][:limit]
"""
_LARGE_VOCABULARY = 64_000
_NAME_TOKENS = 10
"""Tokens of the name and the fences around a document."""
_PASSED_OVER = frozenset(("__pycache__", "node_modules"))


@record
class Document:
    """A file with its text.

    ``name`` is only as long as needed to tell it from the other files.
    """

    name: str
    path: Path
    text: str
    n_tokens: int = 0
    """Estimated tokens of the open model."""

    @property
    def in_message(self) -> str:
        """Text of the document for a message."""
        return attached(self.name, self.text)

    @property
    def is_picture(self) -> bool:
        """Whether the text is a reference to a picture."""
        return pictures.size_of(self.text) is not None


@record
class ReadDocuments:
    """Documents in the order of a message, and a line for each thing left out."""

    documents: tuple[Document, ...] = ()
    troubles: tuple[str, ...] = ()
    is_stopped: bool = False
    """Whether the user stopped the reading."""

    def with_earlier(
        self,
        earlier: Sequence[Document],
        ratio: float = 1.0,
        picture_tokens: Callable[[str], int] | None = None,
    ) -> tuple[Document, ...]:
        """Return earlier documents and these, each file once.

        Args:
            ratio: ``tokens_ratio`` of the open model.
            picture_tokens: returns the tokens of a picture, given its reference; None for an
                estimate for all models.
        """
        return _named(
            {document.path: document.text for document in (*earlier, *self.documents)},
            ratio,
            picture_tokens,
        )


def about_tokens(text: str) -> int:
    """Estimate the tokens of a text. In large vocabularies, prose and code are within 20 %."""
    sample = text[:_SAMPLE_CHARS]
    return len(_PIECE.findall(sample)) * len(text) // max(1, len(sample)) + _NAME_TOKENS


def tokens_ratio(encode: Callable[[str], Sequence[int]], vocab_size: int) -> float:
    """Return the actual tokens of a usual text divided by their estimate.

    Large vocabularies count as 1.0: their first use would cost 70 ms at the start.
    """
    if vocab_size >= _LARGE_VOCABULARY:
        return 1.0
    return max(1.0, len(encode(_USUAL_TEXT)) / about_tokens(_USUAL_TEXT))


def split_wanted(text: str) -> list[str]:
    """Return the names given to a command. Names with spaces are quoted, or alone."""
    if os.path.lexists(os.path.expanduser(text)):
        return [text]
    import shlex  # the first frame does not need it

    try:
        return shlex.split(text + '"' * (text.count('"') % 2))
    except ValueError:  # an apostrophe
        return [text]


def referred(text: str) -> list[str]:
    """Return the names after @ signs in a message, whether they exist or not."""
    return [quoted or bare for quoted, bare in _REFERENCE.findall(text)]


def referred_so_far(text: str) -> list[str]:
    """Return the names after @ signs in a text being typed. Names may be empty and quotes open."""
    return [quoted or bare for quoted, bare in _REFERENCE_BEGUN.findall(text)]


def described(names: Iterable[str]) -> str:
    """Describe the files that a message names:

    "notes.txt (3.1K), docs (folder)"; "" if there are none.
    """
    descriptions = []
    for name in names:
        name = existing_name(name)
        with suppress(OSError, ValueError):
            status = os.stat(os.path.expanduser(name))
            if stat.S_ISDIR(status.st_mode):
                extent = "folder"
            else:
                extent = size(status.st_size)
            descriptions.append(f"{clean_line(name, 80)} ({extent})")
    n_more = len(descriptions) - _MOST_DESCRIBED
    if n_more > 0:
        descriptions[_MOST_DESCRIBED:] = [f"{n_more} more"]
    return ", ".join(descriptions)


def pictures_named(names: Iterable[str]) -> list[str]:
    """Return the text for a message of each picture that a draft names; others are left out."""
    texts = []
    for name in names:
        path = picture_path(name)
        if path is None or not path.is_file():
            continue
        with suppress(Refusal):
            texts.append(attached(path.name, pictures.read_picture_text(path)))
    return texts


class ReadingStopped(Exception):
    """The user stopped reading documents."""


@record
class ReadingProgress:
    """Progress of reading documents."""

    n_read: int
    """Number of files done, whether they can be used or not."""
    n_files: int
    """Number of files counted so far; it grows while folders are searched."""
    path: Path | None = None
    """File being read; None while folders are searched."""

    @property
    def line(self) -> str:
        """The progress in a line."""
        if self.path is None:
            return f"looking for documents: {counted(self.n_files, 'file')}"
        return (
            f"reading documents: {self.n_read + 1:,} of {self.n_files:,}, "
            f"{clean_line(self.path.name, 60)}"
        )


Follow = Callable[[ReadingProgress], bool]
"""Progress function, called at least ten times a second from the start. It returns False to
stop.
"""


def _go_on(_progress: ReadingProgress) -> bool:
    return True


def read_documents(
    names: Iterable[str],
    only_existing: bool = False,
    follow: Follow = _go_on,
    clock: Callable[[], float] = time.monotonic,
) -> ReadDocuments:
    """Read everything named, as far as the limits on all documents allow.

    Args:
        names: files, folders and patterns.
        only_existing: skip names that do not exist.
        follow: receives the progress and may stop; documents read so far are returned.
    """
    names = list(names)
    named_paths = {_real_path(name) for name in names}
    texts: dict[Path, str] = {}
    troubles: list[str] = []
    paths: list[Path] = []
    n_read = 0
    n_chars = 0
    begin_s = clock()
    reason = ""
    is_stopped = False

    def tick(n_done: int = 0, path: Path | None = None) -> None:
        if not follow(ReadingProgress(n_done, len(paths), path)):
            raise ReadingStopped

    try:
        for path in _found(names, only_existing, troubles, tick):
            paths.append(path)
            if not len(paths) % _FILES_PER_TICK:
                tick()
        paths = list(dict.fromkeys(paths))
        for n_read, path in enumerate(paths):
            tick(n_read, path)
            if clock() - begin_s > MOST_S:
                reason = f"the reading has taken {MOST_S / 60:.0f} min"
                break
            try:
                if path in named_paths and path.suffix.lower() in pictures.SUFFIXES:
                    text = pictures.read_picture_text(path)
                else:
                    text = _text_of(path, troubles, partial(tick, n_read, path))
            except Refusal as refusal:
                troubles.append(str(refusal))
                continue
            n_chars += len(text)
            if n_chars > MOST_CHARS or len(texts) == MOST_FILES:
                limits = f"{MOST_FILES:,} files and {MOST_CHARS >> 20} million characters"
                reason = f"the limits are {limits}"
                break
            texts[path] = text
    except ReadingStopped:
        reason = "stopped"
        is_stopped = True
    _shorten(troubles)
    if reason:
        troubles.append(_left_out(paths[n_read:], reason))
    return ReadDocuments(_named(texts), tuple(troubles), is_stopped)


def _left_out(paths: Sequence[Path], reason: str) -> str:
    if not paths:
        return f"no file was read ({reason})"
    description = clean_line(str(paths[0]), 200)
    if len(paths) > 1:
        description += f" and {counted(len(paths) - 1, 'more file')}"
    return f"{description}: left out ({reason})"


def _shorten(troubles: list[str]) -> None:
    n_more = len(troubles) - _MOST_LINES
    if n_more > 0:
        troubles[_MOST_LINES:] = [f"... and {n_more} more cannot be read"]


def _named(
    texts: dict[Path, str],
    ratio: float = 1.0,
    picture_tokens: Callable[[str], int] | None = None,
) -> tuple[Document, ...]:
    """Name each document by its file, with its folder if another file has the same name.

    Names and order do not depend on the path to the files, so saved states fit again.
    """
    n_files = Counter(path.name for path in texts)
    n_pairs = Counter(path.parts[-2:] for path in texts)
    documents = []
    for path, text in texts.items():
        if n_files[path.name] == 1:
            name = path.name
        else:
            name = "/".join(path.parts[-2:])
        if n_pairs[path.parts[-2:]] != 1:
            name = str(path)
        picture_size = pictures.size_of(text)
        if picture_size is not None:
            n_tokens = pictures.about_tokens(picture_size)
            if picture_tokens is not None:
                n_tokens = picture_tokens(text)
        else:
            n_tokens = round(ratio * about_tokens(text))
        documents.append(Document(name, path, text, n_tokens))
    return tuple(sorted(documents, key=lambda document: document.in_message))


# ---- finding files


def _found(
    names: Iterable[str], only_existing: bool, troubles: list[str], tick: Callable[[], None]
) -> Iterator[Path]:
    """Yield files with resolved links; folders and patterns are sorted by name."""
    for name in names:
        if only_existing and not _exists(name := existing_name(name)):
            continue
        clean_name = clean_line(name, 200)
        try:
            yield from _files(os.path.expanduser(name), troubles, tick)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.strerror:
                reason = error.strerror
            else:
                reason = "is not a path"
            troubles.append(f"{clean_name}: {reason} (name a text file)")


def _real_path(name: str) -> Path | None:
    """Return the path of a name, without the punctuation that may follow it; None if it is none."""
    with suppress(OSError, ValueError):
        return Path(os.path.realpath(os.path.expanduser(existing_name(name))))
    return None


def picture_path(name: str) -> Path | None:
    """Return the path that a name after an @ leads to; None if it is not that of a picture."""
    path = _real_path(name)
    if path is None or path.suffix.lower() not in pictures.SUFFIXES:
        return None
    return path


def existing_name(name: str) -> str:
    """Return a name after an @, without punctuation unless a file has it in its name."""
    if _exists(name):
        return name
    return name.rstrip(".,;:!?)")


def _exists(name: str) -> bool:
    try:
        return os.path.exists(os.path.expanduser(name))
    except ValueError:
        return False


def _files(name: str, troubles: list[str], tick: Callable[[], None]) -> Iterator[Path]:
    if os.path.isdir(name):
        n_before = len(troubles)
        paths = sorted(_walked(name, troubles, tick))
        if not paths and len(troubles) == n_before:
            troubles.append(f"{clean_line(name, 200)}: has no files")
        yield from paths
    elif glob.has_magic(name) and not os.path.lexists(name):
        matches = sorted(islice(glob.iglob(name, recursive=True), _MOST_ENTRIES))
        if not matches:
            troubles.append(f"{clean_line(name, 200)}: no file matches")
        for match in matches:
            if not os.path.isdir(match):
                yield Path(os.path.realpath(match, strict=True))
    else:
        yield Path(os.path.realpath(name, strict=True))


def _walked(folder: str, troubles: list[str], tick: Callable[[], None]) -> Iterator[Path]:
    """Yield the files below a folder, except hidden ones. Links are not followed."""
    n_entries = 0
    root = Path(os.path.realpath(folder, strict=True))
    for directory, folders, names in os.walk(root):
        folders[:] = sorted(
            folder_name
            for folder_name in folders
            if not folder_name.startswith(".") and folder_name not in _PASSED_OVER
        )
        for name in sorted(names):
            n_entries += 1
            if not n_entries % _FILES_PER_TICK:
                tick()
            path = Path(directory, name)
            if n_entries > _MOST_ENTRIES:
                troubles.append(
                    f"{clean_line(folder, 200)}: has more than {_MOST_ENTRIES:,} files (name "
                    f"folders in it)"
                )
                return
            if path.is_symlink():
                troubles.append(
                    f"{clean_line(str(path), 200)}: is a link in a folder "
                    "(name the file itself to read it)"
                )
            elif not name.startswith("."):
                yield path


# ---- reading


def _no_tick() -> None:
    """Report nothing."""


def _text_of(
    path: Path, notes: list[str] | None = None, tick: Callable[[], None] = _no_tick
) -> str:
    """Return the text of a file.

    Args:
        notes: receives lines about omitted content.
        tick: called regularly; its exceptions end the reading.

    Raises:
        Refusal: the file cannot be read or has an unknown type.
    """
    suffix = path.suffix.lower()
    if suffix not in KINDS:
        return read_text_file(path)
    name = clean_line(str(path), 200)
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_SOURCE_BYTES:
            raise Refusal(f"{name}: is larger than {MAX_SOURCE_BYTES >> 20} MiB, the limit")
        head = bounded(file, HEAD_BYTES, name, is_beginning=True)
        file.seek(0)
        try:
            refuse_unsupported(suffix, head)
        except KindRefusal as refusal:
            raise Refusal(f"{name}: {refusal}") from None
        text, left_out = _converted(suffix, file, name, tick)
    if notes is not None:
        notes += [f"{name}: {clean_line(note, 200)}" for note in left_out]
    return cleaned(text, name)


def _converted(
    suffix: str, file: BinaryIO, name: str, tick: Callable[[], None]
) -> tuple[str, list[str]]:
    """Convert a file in a process of its own; return the text and notes on omitted content."""
    command = [*own_module("app.documents.convert"), suffix, str(CPU_S)]
    try:
        child = subprocess.Popen(
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise Refusal(f"{name}: the converter does not start ({error.strerror})") from error
    try:
        notes, raw = _read_output(child, tick).split(b"\n", 1)
        code = child.wait()
    except ValueError:
        notes = raw = b""
        code = child.wait()
    finally:
        child.kill()
        if child.stdout is not None:
            child.stdout.close()
        child.wait()
    if code == 0:
        return raw.decode("utf-8", "replace"), _notes(notes)
    if code == FAILED:
        raise Refusal(f"{name}: {clean_line(raw.decode('utf-8', 'replace'), 200)}")
    is_late = code in (-signal.SIGKILL, -getattr(signal, "SIGXCPU", signal.SIGKILL))
    if is_late:
        reason = f"takes more than {CPU_S} s of processor time"
    else:
        reason = "cannot be converted"
    raise Refusal(f"{name}: {reason} (save it as text)")


def _read_output(child: subprocess.Popen[bytes], tick: Callable[[], None]) -> bytes:
    """Return the output of a process, at most four bytes for each character of the longest text."""
    assert child.stdout is not None
    output = bytearray()
    while len(output) <= 4 * MAX_TEXT_CHARS:
        is_ready = select.select([child.stdout], [], [], _TICK_S)[0]
        tick()
        if is_ready:
            piece = os.read(child.stdout.fileno(), _CHUNK_BYTES)
            if not piece:
                break
            output += piece
    return bytes(output)


def _notes(raw: bytes) -> list[str]:
    notes = json.loads(raw)
    return [note for note in notes if isinstance(note, str)]
