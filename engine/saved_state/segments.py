"""The tree of saved prefixes: one directory for a model and type of cache, one file for up to 64
positions.

A prefix of tokens has a key: the digest of what the session is (model, type of cache, ropes,
version) and of all its token ids. A segment continues the prefix of ``first`` tokens, a multiple of
64, to ``last``; its name is the key of the one, its length, and the key of the other. So names
alone tell which prefixes there are, conversations that begin alike share their files, and no file
is ever changed. Most segments end at the next multiple of 64; others are where a conversation ends,
or where recurrent layers can go on, whose state comes after the keys and values. Where a segment is
missing or damaged, the prefix ends: a session that needs more computes it and writes the segment
again.

::

    digest      16 bytes  of the file's name, the checksum and the token ids
    checksum     4 bytes  CRC-32 of the payload
    token ids             int32, one for each position
    payload               K and V of those positions, all layers, as the cache keeps them (``LayerMemory.copy_out``);
                          after the last of them perhaps the recurrent layers' state

Numbers are little-endian, keys and values in the machine's byte order. CRC-32 of zlib was chosen
for its speed of 1.9 GB/s (Adler-32 1.6, SHA-256 0.9, BLAKE2b 0.5): 0.14 s for 2,000 tokens of an 8B
model. A 64-bit hash of our own reaches 6.5, but would have to be compiled.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import struct
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from engine.cache.cached_tokens import common_prefix
from engine.cache.layer_cache import POSITIONS
from engine.saved_state.state_file import NO_FOLLOW, SavedMatch, SavedPiece, opened, read_into

if TYPE_CHECKING:
    from engine.cache.hybrid_memory import LayerMemory
    from engine.session import Session

SEGMENT_VERSION = 3
"""Of the form of a segment's file and of its name."""
SEGMENT_POSITIONS = 64
"""Limit on the positions of one segment, and so on the loss by a flipped bit; segments begin at
multiples of it."""
MOST_SIBLINGS = 64
"""Limit on the segments that are opened to see how far one that continues otherwise agrees."""
KEY_BYTES = 16
_HEAD = struct.Struct(f"<{KEY_BYTES}sI")
_CREATE = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | NO_FOLLOW
)
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
        if found:
            return cls(found[1], int(found[2]), found[3])
        return None

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.parent}-{self.last}-{self.key}.kv"

    @property
    def first(self) -> int:
        """Its first position."""
        return (self.last - 1) // SEGMENT_POSITIONS * SEGMENT_POSITIONS

    @property
    def head_bytes(self) -> int:
        """Bytes of the file before its keys and values."""
        return head_bytes(self.last - self.first)

    def digest(self, checksum: int, ids: bytes) -> bytes:
        """Return the digest of a file of this name."""
        about = self.name.encode() + struct.pack("<I", checksum) + ids
        return hashlib.blake2b(about, digest_size=KEY_BYTES).digest()


def head_bytes(n: int) -> int:
    """Return the bytes of a segment of n positions before its keys and values."""
    return _HEAD.size + 4 * n


def next_segment(memory: LayerMemory, saved: int, n_tokens: int) -> tuple[int, int]:
    """Return the first position of the segment that goes on after ``saved`` tokens, and one past
    its last."""
    first = saved // SEGMENT_POSITIONS * SEGMENT_POSITIONS
    return first, memory.segment_end(saved, min(n_tokens, first + SEGMENT_POSITIONS))


def saved_bytes(memory: LayerMemory, n_tokens: int) -> int:
    """Return the size in bytes of the segments of ``n_tokens`` tokens."""
    total = 0
    last = 0
    while last < n_tokens:
        first, last = next_segment(memory, last, n_tokens)
        total += head_bytes(last - first) + memory.copied_bytes(first, last)
    return total


class PrefixKeys:
    """Keys of the prefixes of one sequence of token ids, which may grow and be cut.

    Args:
        session: that the tokens are for.

    Raises:
        EngineError: its model file was changed.
    """

    def __init__(self, session: Session) -> None:
        self._blocks = [_root(session)]

    def cut(self, n: int) -> None:
        """Forget what comes after the first n tokens."""
        del self._blocks[n // SEGMENT_POSITIONS + 1 :]

    def at(self, ids: Sequence[int], n: int) -> str:
        """Return the key of the first n tokens."""
        while len(self._blocks) <= n // SEGMENT_POSITIONS:
            first = (len(self._blocks) - 1) * SEGMENT_POSITIONS
            self._blocks.append(_updated(self._blocks[-1], ids[first : first + SEGMENT_POSITIONS]))
        first = n // SEGMENT_POSITIONS * SEGMENT_POSITIONS
        return _updated(self._blocks[n // SEGMENT_POSITIONS], ids[first:n]).hexdigest()


def _root(session: Session) -> hashlib.blake2b:
    """Begin the keys of what a session can take over.

    The size of the context counts only by the ropes it chooses.
    """
    about = (
        SEGMENT_VERSION,
        sys.byteorder,
        session.memory.layout_version,
        session.kv_type,
        session.model.fingerprint,
    )
    digest = hashlib.blake2b(
        repr((*about, SEGMENT_POSITIONS, POSITIONS)).encode(), digest_size=KEY_BYTES
    )
    for attention in session.config.attentions.values():
        if attention.rope is not None:
            turned = session.rotations[attention.rope]
        else:
            turned = None
        if turned:
            pairs = (len(turned.frequencies), turned.pair_step, turned.pair_distance)
        else:
            pairs = (0, 0, 0)
        digest.update(struct.pack("<3Id", *pairs, turned.magnitude if turned else 1.0))
        digest.update(turned.frequencies.astype("<f8").tobytes() if turned else b"")
    return digest


def _updated(block: hashlib.blake2b, ids: Sequence[int]) -> hashlib.blake2b:
    updated = block.copy()
    updated.update(np.array(ids, "<i4").tobytes())
    return updated


def find(place: Path, session: Session, ids: Sequence[int]) -> SavedMatch:
    """Find the longest prefix of some tokens in a directory by its names; no keys and values are
    read.

    Args:
        place: the directory; one that does not exist holds nothing.
        session: that wants them; the sizes of payloads must be those of its memory.

    Raises:
        EngineError: as ``PrefixKeys``.
    """
    try:
        names = os.listdir(place)
    except OSError:
        return SavedMatch(0, [])
    children: dict[str, list[str]] = {}
    for name in names:
        children.setdefault(name[: 2 * KEY_BYTES], []).append(name)
    keys = PrefixKeys(session)
    pieces = list[SavedPiece]()
    n = 0
    while n < len(ids):
        segments = filter(None, map(Segment.of_name, children.get(keys.at(ids, n), ())))
        block = _Block(place, ids, [one for one in segments if one.first == n], session.memory)
        agreed, found = block.longest(keys)
        pieces += found
        if agreed < n + SEGMENT_POSITIONS:
            return SavedMatch(max(n, agreed), pieces)
        n = agreed
    return SavedMatch(n, pieces)


def names_of(place: Path, session: Session, ids: Sequence[int]) -> list[str]:
    """Return the names of the segments that hold these tokens and no others; what only begins like
    them is left out.

    Args:
        place, session: as of ``find``.

    Raises:
        EngineError: as ``PrefixKeys``.
    """
    try:
        segments = list(filter(None, map(Segment.of_name, os.listdir(place))))
    except OSError:
        return []
    keys = PrefixKeys(session)
    return [
        one.name for one in segments if one.last <= len(ids) and keys.at(ids, one.last) == one.key
    ]


@dataclass(frozen=True)
class _Block:
    """The segments that continue one prefix, and the tokens that are wanted."""

    place: Path
    ids: Sequence[int]
    segments: list[Segment]
    memory: LayerMemory

    def longest(self, keys: PrefixKeys) -> tuple[int, list[SavedPiece]]:
        """Return up to where they agree, and the pieces: the longest one, and those with a
        recurrent state."""
        ids = self.ids
        found = list[tuple[int, SavedPiece]]()
        others = list[Segment]()
        for segment in self.segments:
            if segment.last <= len(ids) and keys.at(ids, segment.last) == segment.key:
                found += self._piece(segment, segment.last)
            else:
                others.append(segment)
        agreed = max((n for n, _ in found), default=0)
        if others and agreed < min(len(ids), others[0].first + SEGMENT_POSITIONS):
            shared = {self._shared(segment): segment for segment in others[:MOST_SIBLINGS]}
            if max(shared) > agreed:
                found += self._piece(shared[max(shared)], max(shared))
        found.sort(key=lambda one: (one[0], one[1].n_bytes))
        needed = [
            piece
            for _, piece in found
            if piece is found[-1][1] or self.memory.has_state(piece.copied)
        ]
        return (found[-1][0] if found else 0), needed

    def _shared(self, segment: Segment) -> int:
        """Return the position up to which a segment agrees that continues otherwise."""
        try:
            with opened(self.place / segment.name) as fd:
                head = read_head(fd, segment)
        except OSError:
            return 0
        if head:
            return segment.first + common_prefix(head[0], self.ids[segment.first :])
        return 0

    def _piece(self, segment: Segment, agreed: int) -> list[tuple[int, SavedPiece]]:
        """Return the piece whose tokens are those wanted up to ``agreed``; none where the size
        cannot be."""
        path = self.place / segment.name
        wanted = list(self.ids[segment.first : agreed])
        try:
            n_bytes = path.lstat().st_size - segment.head_bytes
        except OSError:
            return []
        if not self.memory.is_copy(segment.first, segment.last, n_bytes):
            return []

        def read(view: memoryview) -> bool:
            try:
                with opened(path) as fd:
                    head = read_head(fd, segment)
                    ids, checksum = head or ([], 0)
                    is_meant = bool(head) and ids[: len(wanted)] == wanted
                    is_sound = is_meant and read_into(fd, view) and zlib.crc32(view) == checksum
            except FileNotFoundError:
                return False
            except OSError:
                is_sound = False
            if is_sound:
                mark_used(path)
            else:
                with suppress(OSError):
                    path.unlink()  # or no one would write it again
            return is_sound

        return [(agreed, SavedPiece(segment.first, segment.last, n_bytes, read))]


def mark_used(path: Path) -> None:
    """Note that a segment was used now: those used longest ago are dropped first."""
    with suppress(OSError):
        os.utime(path)


def read_head(fd: int, segment: Segment) -> tuple[list[int], int] | None:
    """Read the token ids and the checksum of a segment; None if they are not of that name, or
    damaged.

    Args:
        fd: descriptor of the open file, at its beginning.
        segment: as the name says.
    """
    raw = bytearray(segment.head_bytes)
    if not read_into(fd, memoryview(raw)):
        return None
    digest, checksum = _HEAD.unpack_from(raw)
    ids = bytes(raw[_HEAD.size :])
    if digest == segment.digest(checksum, ids):
        return (np.frombuffer(ids, "<i4").tolist(), checksum)
    return None


def write_segment(
    place: Path, segment: Segment, token_ids: Sequence[int], payload: memoryview
) -> None:
    """Write a segment: complete under its name, or not at all.

    Args:
        token_ids: those of its positions.

    Raises:
        OSError: it was not written.
    """
    checksum = zlib.crc32(payload)
    ids = np.array(token_ids, "<i4").tobytes()
    head = _HEAD.pack(segment.digest(checksum, ids), checksum) + ids
    temporary = (
        place / f".{segment.name}.{secrets.token_hex(4)}"
    )  # another program may be writing the same
    fd = os.open(temporary, _CREATE, 0o600)
    try:
        try:
            for part in (head, payload):
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
