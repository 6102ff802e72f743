"""Documents by what a user names: files, folders, patterns.

One that cannot be used costs a line, never the rest.
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

from app.documents.file_types import HEAD_BYTES, WORD, KindRefusal, refuse_unsupported
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

KINDS = WORD | frozenset(
    (".html", ".htm", ".xhtml", ".mhtml", ".mht", ".eml", ".doc", ".dot", ".rtf", ".ipynb", ".pdf")
)
"""Names of files that a process of its own converts end so; everything else is read as text."""
MOST_FILES = 1000
MOST_CHARS = MAX_TEXT_CHARS
"""Limit on the text of all documents together."""
CPU_S = 30
"""Processor time for a file that is converted: a book of a thousand pages takes less on an old
machine."""
MOST_S = 600.0
"""Time after which no other file is begun."""
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
_USUAL_TEXT = """The steamer left the harbour at 7:45 on Thursday, 3 March 1921, with 214 passengers; most slept badly.
"Where is the captain?" asked Mrs. Whitfield, who wasn't easily persuaded. No one answered. Temperature, pressure and
humidity had been measured since 1898, although the instruments (two barometers, a hygrometer) were unreliable.

- Configuration: see https://example.org/docs/install.html, version 2.10.3
- Availability depends on manufacturers, governments and international agreements.

def read_values(path: str, limit: int = 100) -> list[float]:
    with open(path, encoding="utf-8") as file:
        return [float(line.split(",")[0]) for line in file if line.strip()][:limit]
"""
_LARGE_VOCABULARY = 64_000
_NAME_TOKENS = 10
"""Of the name and the fences around a document."""
_PASSED_OVER = frozenset(("__pycache__", "node_modules"))


@record
class Document:
    """A file's text.

    ``name``: as the model reads it: no longer than needed to tell it from the others.
    """

    name: str
    path: Path
    text: str
    n_tokens: int = 0
    """Of the open model, about."""

    @property
    def in_message(self) -> str:
        """The document as it is in a message."""
        return attached(self.name, self.text)


@record
class ReadDocuments:
    """Documents in the order in which they are in a message, and a line for each thing that was
    left out."""

    documents: tuple[Document, ...] = ()
    troubles: tuple[str, ...] = ()
    is_stopped: bool = False
    """Whether the user stopped the reading."""

    def with_earlier(self, earlier: Sequence[Document], ratio: float = 1.0) -> tuple[Document, ...]:
        """Return these documents and those of before, each file once.

        ``ratio``: the open model's ``tokens_ratio``.
        """
        return _named({one.path: one.text for one in (*earlier, *self.documents)}, ratio)


def about_tokens(text: str) -> int:
    """Estimate the tokens of a text; of prose and code in large vocabularies it is within 20 %."""
    sample = text[:_SAMPLE_CHARS]
    return len(_PIECE.findall(sample)) * len(text) // max(1, len(sample)) + _NAME_TOKENS


def tokens_ratio(encode: Callable[[str], Sequence[int]], vocab_size: int) -> float:
    """Return how many times as many tokens as estimated a model's small vocabulary needs, by a text
    of usual kind.

    A large one needs no more, and its first use costs 70 ms, which a start need not wait for.
    """
    if vocab_size >= _LARGE_VOCABULARY:
        return 1.0
    return max(1.0, len(encode(_USUAL_TEXT)) / about_tokens(_USUAL_TEXT))


def split_wanted(text: str) -> list[str]:
    """Return the names that a command was given; those with spaces are in quotes, or alone."""
    if os.path.lexists(os.path.expanduser(text)):
        return [text]
    import shlex  # the first frame does without

    try:
        return shlex.split(text + '"' * (text.count('"') % 2))
    except ValueError:  # an apostrophe
        return [text]


def referred(text: str) -> list[str]:
    """Return what comes after @ signs in a message, whether such files exist or not."""
    return [quoted or bare for quoted, bare in _REFERENCE.findall(text)]


def referred_so_far(text: str) -> list[str]:
    """Return the same of a text that is being typed: names may be empty, and quotes open."""
    return [quoted or bare for quoted, bare in _REFERENCE_BEGUN.findall(text)]


def described(names: Iterable[str]) -> str:
    """Name the files that a message leads to, with their sizes: "notes.txt (3.1K), docs (folder)";
    "" for none."""
    found = []
    for name in names:
        name = _existing(name)
        with suppress(OSError, ValueError):
            status = os.stat(os.path.expanduser(name))
            if stat.S_ISDIR(status.st_mode):
                kind = "folder"
            else:
                kind = size(status.st_size)
            found.append(f"{clean_line(name, 80)} ({kind})")
    more = len(found) - _MOST_DESCRIBED
    if more > 0:
        found[_MOST_DESCRIBED:] = [f"{more} more"]
    return ", ".join(found)


class ReadingStopped(Exception):
    """The user has stopped the reading of documents."""


@record
class ReadingProgress:
    """How far the reading of documents is."""

    n_read: int
    """Files that are done, whether they can be used or not."""
    n_files: int
    """Files that were counted so far; as long as folders are searched, more may come."""
    path: Path | None = None
    """File that is being read; None while folders are searched."""

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
"""Progress function that is called ten times a second or more.

It is called from the first moment on, and returns False to stop the reading.
"""


def _go_on(_progress: ReadingProgress) -> bool:
    return True


def read_documents(
    wanted: Iterable[str],
    only_existing: bool = False,
    follow: Follow = _go_on,
    clock: Callable[[], float] = time.monotonic,
) -> ReadDocuments:
    """Read everything that is named, or as much as the limits allow.

    The limits are those on all documents together. It also ends when it is stopped.

    Args:
        wanted: files, folders and patterns.
        only_existing: pass over words of a message that lead to nothing.
        follow: takes the progress and may stop; what was read by then is kept.
    """
    texts: dict[Path, str] = {}
    troubles: list[str] = []
    paths: list[Path] = []
    n_read = 0
    n_chars = 0
    begin_s = clock()
    rest = ""
    is_stopped = False

    def tick(n_done: int = 0, path: Path | None = None) -> None:
        if not follow(ReadingProgress(n_done, len(paths), path)):
            raise ReadingStopped

    try:
        for path in _found(wanted, only_existing, troubles, tick):
            paths.append(path)
            if not len(paths) % _FILES_PER_TICK:
                tick()
        paths = list(dict.fromkeys(paths))
        for n_read, path in enumerate(paths):
            tick(n_read, path)
            if clock() - begin_s > MOST_S:
                rest = f"the reading has taken {MOST_S / 60:.0f} min"
                break
            try:
                text = _text_of(path, troubles, partial(tick, n_read, path))
            except Refusal as refusal:
                troubles.append(str(refusal))
                continue
            n_chars += len(text)
            if n_chars > MOST_CHARS or len(texts) == MOST_FILES:
                limits = f"{MOST_FILES:,} files and {MOST_CHARS >> 20} million characters"
                rest = f"the limits are {limits}"
                break
            texts[path] = text
    except ReadingStopped:
        rest = "stopped"
        is_stopped = True
    _shorten(troubles)
    if rest:
        troubles.append(_left_out(paths[n_read:], rest))
    return ReadDocuments(_named(texts), tuple(troubles), is_stopped)


def _left_out(paths: Sequence[Path], reason: str) -> str:
    if not paths:
        return f"no file was read ({reason})"
    what = clean_line(str(paths[0]), 200)
    if len(paths) > 1:
        what += f" and {counted(len(paths) - 1, 'file')} after it"
    return f"{what}: left out ({reason})"


def _shorten(troubles: list[str]) -> None:
    more = len(troubles) - _MOST_LINES
    if more > 0:
        troubles[_MOST_LINES:] = [f"... and {more} more that cannot be read"]


def _named(texts: dict[Path, str], ratio: float = 1.0) -> tuple[Document, ...]:
    """Name each by its file, and by its folder too where another file has the same name; in the
    order of a message.

    Names and order do not depend on the way to the files: what was read of them once serves again.
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
        documents.append(Document(name, path, text, round(ratio * about_tokens(text))))
    return tuple(sorted(documents, key=lambda one: one.in_message))


# ---- finding


def _found(
    wanted: Iterable[str], only_existing: bool, troubles: list[str], tick: Callable[[], None]
) -> Iterator[Path]:
    """Yield files, their links resolved; folders and patterns in the order of their names."""
    for name in wanted:
        if only_existing and not _exists(name := _existing(name)):
            continue
        shown = clean_line(name, 200)
        try:
            yield from _files(os.path.expanduser(name), troubles, tick)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.strerror:
                reason = error.strerror
            else:
                reason = "is not a path"
            troubles.append(f"{shown}: {reason} (name a text file)")


def _existing(name: str) -> str:
    """Return a name after an @ without what ends the sentence, unless a file is called so."""
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
            troubles.append(f"{clean_line(name, 200)}: has no file in it")
        yield from paths
    elif glob.has_magic(name) and not os.path.lexists(name):
        matches = sorted(islice(glob.iglob(name, recursive=True), _MOST_ENTRIES))
        if not matches:
            troubles.append(f"{clean_line(name, 200)}: no file has such a name")
        for match in matches:
            if not os.path.isdir(match):
                yield Path(os.path.realpath(match, strict=True))
    else:
        yield Path(os.path.realpath(name, strict=True))


def _walked(folder: str, troubles: list[str], tick: Callable[[], None]) -> Iterator[Path]:
    """Yield the files below a folder but hidden ones; links are not followed, so that none leads
    out or in a circle."""
    n_entries = 0
    root = Path(os.path.realpath(folder, strict=True))
    for place, folders, names in os.walk(root):
        folders[:] = sorted(
            one for one in folders if not one.startswith(".") and one not in _PASSED_OVER
        )
        for name in sorted(names):
            n_entries += 1
            if not n_entries % _FILES_PER_TICK:
                tick()
            path = Path(place, name)
            if n_entries > _MOST_ENTRIES:
                troubles.append(
                    f"{clean_line(folder, 200)}: has more than {_MOST_ENTRIES:,} files (name "
                    f"folders in it)"
                )
                return
            if path.is_symlink():
                troubles.append(
                    f"{clean_line(str(path), 200)}: is a link in a folder (name it to read it)"
                )
            elif not name.startswith("."):
                yield path


# ---- reading


def _no_tick() -> None:
    """Report nothing."""


def _text_of(
    path: Path, notes: list[str] | None = None, tick: Callable[[], None] = _no_tick
) -> str:
    """Return a file's text.

    Args:
        notes: takes a line about what is left out of the text.
        tick: called now and then; what it raises ends the reading.

    Raises:
        Refusal: the file cannot be read, or is of no kind that is.
    """
    kind = path.suffix.lower()
    if kind not in KINDS:
        return read_text_file(path)
    shown = clean_line(str(path), 200)
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_SOURCE_BYTES:
            raise Refusal(
                f"{shown}: is larger than {MAX_SOURCE_BYTES >> 20} MiB, "
                "the most that is read of a file"
            )
        head = bounded(file, HEAD_BYTES, shown, is_beginning=True)
        file.seek(0)
        try:
            refuse_unsupported(kind, head)
        except KindRefusal as refusal:
            raise Refusal(f"{shown}: {refusal}") from None
        text, left_out = _converted(kind, file, shown, tick)
    if notes is not None:
        notes += [f"{shown}: {clean_line(note, 200)}" for note in left_out]
    return cleaned(text, shown)


def _converted(
    kind: str, file: BinaryIO, shown: str, tick: Callable[[], None]
) -> tuple[str, list[str]]:
    """Let a process of its own make text of a file; return it, and notes on what was left out."""
    command = [*own_module("app.documents.convert"), kind, str(CPU_S)]
    try:
        child = subprocess.Popen(
            command,
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise Refusal(
            f"{shown}: the process that reads it does not start ({error.strerror})"
        ) from error
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
        raise Refusal(f"{shown}: {clean_line(raw.decode('utf-8', 'replace'), 200)}")
    is_late = code in (-signal.SIGKILL, -getattr(signal, "SIGXCPU", signal.SIGKILL))
    if is_late:
        reason = f"takes more than {CPU_S} s of processor time"
    else:
        reason = "is more than its reader can bear"
    raise Refusal(f"{shown}: {reason} (save it as text)")


def _read_output(child: subprocess.Popen[bytes], tick: Callable[[], None]) -> bytes:
    """Return what a process writes, at most four bytes a character of the longest text."""
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
