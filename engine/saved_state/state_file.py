"""Opening a state file safely (no links, own files only), and reading the chain of records of an earlier version."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from engine.cache.cached_tokens import common_prefix
from engine.cache.layer_cache import POSITIONS
from engine.errors import shown
from engine.saved_state.layout import (
    HEADER_BYTES,
    HEADER_DIGEST_BYTES,
    LONGEST_HEADER_BYTES,
    RECORD_POSITIONS,
    StateHeader,
    StateRefusedError,
    read_header,
)
from engine.saved_state.record import Record, head_bytes, parse_record

if TYPE_CHECKING:
    from engine.cache.layer_memory import Copied, LayerMemory

_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


@dataclass(frozen=True)
class SavedPiece:
    """Saved positions that may be copied into a session.

    Attributes:
        first, last: its positions.
        n_bytes: size of their keys and values.
        read: fills a view of that size; False where they are damaged or gone.
        replaces: whether pieces before it may hold other tokens at its positions.
    """

    first: int
    last: int
    n_bytes: int
    read: Callable[[memoryview], bool]
    replaces: bool = False

    @property
    def copied(self) -> Copied:
        """Its positions and size."""
        return self.first, self.last, self.n_bytes


@dataclass(frozen=True)
class SavedMatch:
    """Saved part of a sequence of tokens.

    Attributes:
        n: tokens that agree.
        pieces: in the order in which they are copied.
    """

    n: int
    pieces: list[SavedPiece]


@dataclass(frozen=True)
class Chain:
    """The valid records at a file's beginning.

    Attributes:
        header: of the file.
        records: in order, dead ones included.
        token_ids: ids of all positions, after all records.
        end: end of the last valid record, in bytes; a torn tail may follow.
        digest: of the last valid record, or of the header.
        standing: records up to whose last position the tokens are still those of the chain.
    """

    header: StateHeader
    records: list[Record]
    token_ids: list[int]
    end: int
    digest: bytes
    standing: list[Record] = field(default_factory=list)

    def live(self) -> list[Record]:
        """The records that still say something: none after them begins at or before their first position."""
        found, cut = [], len(self.token_ids)
        for record in reversed(self.records):
            if record.first < cut:
                found.append(record)
                cut = record.first
        return found[::-1]

    def needed(self, memory: LayerMemory) -> list[Record]:
        """Those that live, and those that are only needed for the state after them."""
        wanted = {record.start for record in self.live()}
        wanted |= {record.start for record in self.standing if memory.has_state(record.copied)}
        return [record for record in self.records if record.start in wanted]


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open for reading, without following a link or waiting; yields the descriptor.

    Raises:
        StateRefusedError: a link, not a regular file, or one that somebody else owns or may write.
        OSError: anything else that keeps it from being opened.
    """
    name = shown(path.name)
    if path.is_symlink():
        raise StateRefusedError(f"{name}: is a symbolic link")
    fd = os.open(path, _READ | NO_FOLLOW)
    try:
        problem = unsafe(os.fstat(fd))
        if problem:
            raise StateRefusedError(f"{name}: {problem}")
        yield fd
    finally:
        os.close(fd)


def unsafe(found: os.stat_result) -> str:
    """Return why a file must not be trusted; "" if it may be."""
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    if hasattr(os, "geteuid"):
        if found.st_uid != os.geteuid():
            return "belongs to somebody else"
        if found.st_mode & 0o022:
            return "may be written by others"
    return ""


def read_chain(fd: int, name: str, memory: LayerMemory | None) -> Chain:
    """Read the header and the record heads up to the first invalid one; payloads are not read.

    Args:
        fd: descriptor of the open file.
        name: the file's name, escaped for a one-line message.
        memory: layers' memory whose sizes the payloads must match; None accepts the stated sizes.

    Raises:
        StateRefusedError: see ``read_header``.
    """
    size_bytes = os.fstat(fd).st_size
    start = read_at(fd, 0, LONGEST_HEADER_BYTES)
    header = read_header(start, name)
    chain = Chain(header, [], [], HEADER_BYTES, start[HEADER_BYTES - HEADER_DIGEST_BYTES : HEADER_BYTES])
    records, token_ids, end, digest = chain.records, chain.token_ids, chain.end, chain.digest
    standing: list[Record] = []
    while True:
        record = parse_record(read_at(fd, end, head_bytes(RECORD_POSITIONS)), end, digest)
        if record is None or not _fits(record, header, len(token_ids), size_bytes, memory):
            return Chain(header, records, token_ids, end, digest, standing)
        agreed = record.first + common_prefix(token_ids[record.first :], record.token_ids.tolist())
        standing = [*(one for one in standing if one.last <= agreed), record]
        del token_ids[record.first :]
        token_ids += record.token_ids.tolist()
        records.append(record)
        end, digest = record.end, record.digest


def _fits(record: Record, header: StateHeader, length: int, size_bytes: int, memory: LayerMemory | None) -> bool:
    return (
        record.first % POSITIONS == 0
        and record.first <= length
        and record.end <= size_bytes
        and (memory is None or memory.is_copy(record.first, record.last, record.payload_bytes))
        and int(record.token_ids.min()) >= 0
        and int(record.token_ids.max()) < header.vocab_size
    )


def read_into(fd: int, at: int, view: memoryview) -> bool:
    """Fill the view from offset ``at`` of the file; False if the file ends before."""
    os.lseek(fd, at, os.SEEK_SET)
    done = 0
    with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
        while done < len(view):
            n = file.readinto(view[done:])
            if not n:
                return False
            done += n
    return True


def is_sound(fd: int, record: Record, payload: memoryview) -> bool:
    """Read a record's payload and check it."""
    return read_into(fd, record.payload_at, payload) and zlib.crc32(payload) == record.payload_crc


def read_at(fd: int, at: int, most_bytes: int) -> bytes:
    """Read from offset ``at``: fewer bytes where the file ends before."""
    os.lseek(fd, at, os.SEEK_SET)
    found = b""
    while len(found) < most_bytes:
        piece = os.read(fd, most_bytes - len(found))
        if not piece:
            break
        found += piece
    return found
