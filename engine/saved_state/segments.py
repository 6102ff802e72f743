"""The tree of saved prefixes: one directory for a model and type of cache, one file for up to 64 positions.

A prefix of tokens has a key: the digest of the header, which says model, cache and layout, and of all its token ids. A
segment continues the prefix of ``first`` tokens, a multiple of 64, to ``last``; its name is the key of the one, its
length, and the key of the other. So names alone tell which prefixes there are, conversations that begin alike share
their files, and no file is ever changed. Most segments end at the next multiple of 64; others are where a conversation
ends, or where recurrent layers can go on, whose state comes after the keys and values. Where a segment is missing
or damaged, the prefix ends: a session that needs more computes it and writes the segment again.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.cache.cached_tokens import common_prefix
from engine.saved_state.layout import HEADER_BYTES, HEADER_DIGEST_BYTES, RECORD_POSITIONS, StateHeader
from engine.saved_state.record import Record, head_bytes, parse_record, record_head
from engine.saved_state.state_file import NO_FOLLOW, SavedMatch, SavedPiece, is_sound, opened, read_at

if TYPE_CHECKING:
    from engine.cache.hybrid_memory import LayerMemory

MOST_SIBLINGS = 64
"""Limit on the segments that are opened to see how far one that continues otherwise agrees."""
KEY_BYTES = 16
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | NO_FOLLOW
_NAME = re.compile(r"([0-9a-f]{32})-([1-9][0-9]{0,8})-([0-9a-f]{32})\.kv")


@dataclass(frozen=True)
class Segment:
    """Fields of the name of a segment's file.

    Attributes:
        parent: key of the prefix that it continues.
        last: one past its last position.
        key: of the prefix that it completes.
    """

    parent: str
    last: int
    key: str

    @classmethod
    def of_name(cls, name: str) -> Segment | None:
        """Return the segment of a file's name; None for any other file."""
        found = _NAME.fullmatch(name)
        return cls(found[1], int(found[2]), found[3]) if found else None

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.parent}-{self.last}-{self.key}.kv"

    @property
    def first(self) -> int:
        """Its first position."""
        return (self.last - 1) // RECORD_POSITIONS * RECORD_POSITIONS

    @property
    def head_bytes(self) -> int:
        """Bytes of the file before its keys and values."""
        return HEADER_BYTES + head_bytes(self.last - self.first)


class PrefixKeys:
    """Keys of the prefixes of one sequence of token ids, which may grow and be cut.

    Args:
        header: of the session that the tokens are for.
    """

    def __init__(self, header: StateHeader) -> None:
        root = replace(header, parent=bytes(KEY_BYTES)).to_bytes()
        self._blocks = [hashlib.blake2b(root, digest_size=KEY_BYTES)]

    def cut(self, n: int) -> None:
        """Forget what comes after the first n tokens."""
        del self._blocks[n // RECORD_POSITIONS + 1 :]

    def at(self, ids: Sequence[int], n: int) -> str:
        """Return the key of the first n tokens."""
        while len(self._blocks) <= n // RECORD_POSITIONS:
            first = (len(self._blocks) - 1) * RECORD_POSITIONS
            self._blocks.append(_updated(self._blocks[-1], ids[first : first + RECORD_POSITIONS]))
        first = n // RECORD_POSITIONS * RECORD_POSITIONS
        return _updated(self._blocks[n // RECORD_POSITIONS], ids[first:n]).hexdigest()


def _updated(block: hashlib.blake2b, ids: Sequence[int]) -> hashlib.blake2b:
    updated = block.copy()
    updated.update(np.array(ids, "<i4").tobytes())
    return updated


def find(place: Path, header: StateHeader, ids: Sequence[int], memory: LayerMemory) -> SavedMatch:
    """Find the longest prefix of some tokens in a directory by its names; no keys and values are read.

    Args:
        place: the directory; one that does not exist holds nothing.
        header: of the session that wants them.
        memory: layers' memory whose sizes the payloads must match.
    """
    try:
        names = os.listdir(place)
    except OSError:
        return SavedMatch(0, [])
    children: dict[str, list[str]] = {}
    for name in names:
        children.setdefault(name[: 2 * KEY_BYTES], []).append(name)
    keys, pieces, n = PrefixKeys(header), list[SavedPiece](), 0
    while n < len(ids):
        segments = filter(None, map(Segment.of_name, children.get(keys.at(ids, n), ())))
        block = _Block(place, header, ids, [one for one in segments if one.first == n], memory)
        agreed, found = block.longest(keys)
        pieces += found
        if agreed < n + RECORD_POSITIONS:
            return SavedMatch(max(n, agreed), pieces)
        n = agreed
    return SavedMatch(n, pieces)


def names_of(place: Path, header: StateHeader, ids: Sequence[int]) -> list[str]:
    """Return the names of the segments that hold these tokens and no others; what only begins like them is left out.

    Args:
        place, header: as of ``find``.
    """
    try:
        segments = list(filter(None, map(Segment.of_name, os.listdir(place))))
    except OSError:
        return []
    keys = PrefixKeys(header)
    return [one.name for one in segments if one.last <= len(ids) and keys.at(ids, one.last) == one.key]


@dataclass(frozen=True)
class _Block:
    """The segments that continue one prefix, and the tokens that are wanted."""

    place: Path
    header: StateHeader
    ids: Sequence[int]
    segments: list[Segment]
    memory: LayerMemory

    def longest(self, keys: PrefixKeys) -> tuple[int, list[SavedPiece]]:
        """Return up to where they agree, and the pieces: the longest one, and those with a recurrent state."""
        ids, found, others = self.ids, list[tuple[int, SavedPiece]](), list[Segment]()
        for segment in self.segments:
            if segment.last <= len(ids) and keys.at(ids, segment.last) == segment.key:
                found += self._piece(segment, segment.last)
            else:
                others.append(segment)
        agreed = max((n for n, _ in found), default=0)
        if others and agreed < min(len(ids), others[0].first + RECORD_POSITIONS):
            shared = {self._shared(segment): segment for segment in others[:MOST_SIBLINGS]}
            if max(shared) > agreed:
                found += self._piece(shared[max(shared)], max(shared))
        found.sort(key=lambda one: (one[0], one[1].n_bytes))
        needed = [piece for _, piece in found if piece is found[-1][1] or self.memory.has_state(piece.copied)]
        return (found[-1][0] if found else 0), needed

    def _shared(self, segment: Segment) -> int:
        """Return the position up to which a segment agrees that continues otherwise."""
        try:
            with opened(self.place / segment.name) as fd:
                record = read_head(fd, segment, self.header)
        except OSError:
            return 0
        return segment.first + common_prefix(record.token_ids.tolist(), self.ids[segment.first :]) if record else 0

    def _piece(self, segment: Segment, agreed: int) -> list[tuple[int, SavedPiece]]:
        """Return the piece whose tokens are those wanted up to ``agreed``; none where the size cannot be."""
        path, wanted = self.place / segment.name, list(self.ids[segment.first : agreed])
        try:
            n_bytes = path.lstat().st_size - segment.head_bytes
        except OSError:
            return []
        if not self.memory.is_copy(segment.first, segment.last, n_bytes):
            return []

        def read(view: memoryview) -> bool:
            try:
                with opened(path) as fd:
                    record = read_head(fd, segment, self.header)
                    if record and record.token_ids[: len(wanted)].tolist() == wanted and is_sound(fd, record, view):
                        note_use(path)
                        return True
            except FileNotFoundError:
                return False
            except OSError:
                pass
            with suppress(OSError):
                path.unlink()  # or no one would write it again
            return False

        return [(agreed, SavedPiece(segment.first, segment.last, n_bytes, read))]


def note_use(path: Path) -> None:
    """Note that a segment was used now: those used longest ago are dropped first."""
    with suppress(OSError):
        os.utime(path)


def read_head(fd: int, segment: Segment, header: StateHeader) -> Record | None:
    """Read what is before a segment's keys and values; None if it is not that segment, or is damaged.

    Args:
        fd: descriptor of the open file.
        segment: as the name says.
        header: of the session that wants it.
    """
    wanted = replace(header, parent=bytes.fromhex(segment.parent)).to_bytes()
    raw = read_at(fd, 0, segment.head_bytes)
    record = parse_record(raw[HEADER_BYTES:], wanted[-HEADER_DIGEST_BYTES:])
    if raw[:HEADER_BYTES] != wanted or record is None or (record.first, record.last) != (segment.first, segment.last):
        return None
    return record


def write_segment(
    place: Path, segment: Segment, header: StateHeader, token_ids: Sequence[int], payload: memoryview
) -> None:
    """Write a segment: complete under its name, or not at all.

    Args:
        token_ids: those of its positions.

    Raises:
        OSError: it was not written.
    """
    start = replace(header, parent=bytes.fromhex(segment.parent)).to_bytes()
    crc, before = zlib.crc32(payload), start[-HEADER_DIGEST_BYTES:]
    head = record_head(segment.first, list(token_ids), len(payload), crc, before)
    temporary = place / f".{segment.name}.{secrets.token_hex(4)}"  # another program may be writing the same
    fd = os.open(temporary, _CREATE, 0o600)
    try:
        try:
            for part in (start, head, payload):
                rest = memoryview(part)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, place / segment.name)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
