"""The tree of saved prefixes: one directory for a model and KV type, one file for up to 64
positions.

- A prefix of tokens has a key: the digest of the session's kind (model, KV type, ropes, version)
  and of all token ids.
- A segment continues the prefix of ``first`` tokens, a multiple of 64, to ``last`` tokens. Its file
  is named by the key of the first prefix, ``last``, and the key of the second prefix.
- So the names alone give all prefixes, and conversations that begin alike share their files. Files
  never change.
- Most segments end at the next multiple of 64. Others end where a conversation ends, or at a
  checkpoint of recurrent layers, whose state comes after the keys and values.
- A prefix ends where a segment is missing or damaged. A session that needs more computes it and
  writes the segment again.

::

    digest      16 bytes  digest of the file's name, the checksum and the token ids
    checksum     4 bytes  CRC-32 of the payload
    token ids             int32, one for each position
    payload               keys and values of these positions, all layers, as in the cache
                          (``LayerMemory.copy_out``); optionally the recurrent layers' state

Numbers are little-endian, keys and values in the machine's byte order. zlib's CRC-32 was chosen for
its speed of 1.9 GB/s (Adler-32 1.6, SHA-256 0.9, BLAKE2b 0.5): 0.14 s for 2,000 tokens of an 8B
model. A 64-bit hash of our own reaches 6.5 GB/s, but would have to be compiled.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import struct
import sys
import zlib
from collections.abc import Collection, Iterator, Sequence
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
"""Version of the format of a segment's file and its name."""
SEGMENT_POSITIONS = 64
"""Limit on the positions of one segment. Segments begin at multiples of it."""
MOST_SIBLINGS = 64
"""Limit on the segments that are opened to compare their tokens with a prompt."""
MOST_FOLLOWING = 1024
"""Limit on the segments that are opened to find the tokens after a prompt."""
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
        parent: key of the prefix that the segment continues.
        last: position after the last one.
        key: key of the prefix that the segment completes.
    """

    parent: str
    last: int
    key: str

    @classmethod
    def of_name(cls, name: str) -> Segment | None:
        """Return the segment of a file's name; None for any other file."""
        match = _NAME.fullmatch(name)
        if match:
            return cls(match[1], int(match[2]), match[3])
        return None

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"{self.parent}-{self.last}-{self.key}.kv"

    @property
    def first(self) -> int:
        """First position."""
        return (self.last - 1) // SEGMENT_POSITIONS * SEGMENT_POSITIONS

    @property
    def head_bytes(self) -> int:
        """Number of bytes in the file before the keys and values."""
        return head_bytes(self.last - self.first)

    def digest(self, checksum: int, ids: bytes) -> bytes:
        """Return the digest of a file of this name."""
        content = self.name.encode() + struct.pack("<I", checksum) + ids
        return hashlib.blake2b(content, digest_size=KEY_BYTES).digest()


def head_bytes(n: int) -> int:
    """Return the bytes of a segment of n positions before its keys and values."""
    return _HEAD.size + 4 * n


def next_segment(memory: LayerMemory, n_saved: int, n_tokens: int) -> tuple[int, int]:
    """Return the first position of the segment that continues after ``n_saved`` tokens, and the
    position after its last one."""
    first = n_saved // SEGMENT_POSITIONS * SEGMENT_POSITIONS
    return first, memory.segment_end(n_saved, min(n_tokens, first + SEGMENT_POSITIONS))


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
        session: session of the tokens.

    Raises:
        EngineError: the model file was changed.
    """

    def __init__(self, session: Session) -> None:
        self._blocks = [_root(session)]

    def cut(self, n: int) -> None:
        """Drop the keys of prefixes of more than n tokens."""
        del self._blocks[n // SEGMENT_POSITIONS + 1 :]

    def at(self, ids: Sequence[int], n: int) -> str:
        """Return the key of the first n tokens."""
        while len(self._blocks) <= n // SEGMENT_POSITIONS:
            first = (len(self._blocks) - 1) * SEGMENT_POSITIONS
            self._blocks.append(_updated(self._blocks[-1], ids[first : first + SEGMENT_POSITIONS]))
        first = n // SEGMENT_POSITIONS * SEGMENT_POSITIONS
        return _updated(self._blocks[n // SEGMENT_POSITIONS], ids[first:n]).hexdigest()


def _root(session: Session) -> hashlib.blake2b:
    """Return the digest that all keys of a session begin with: everything that decides whether
    saved keys and values fit it.

    The size of the context counts only if it changes the ropes.
    """
    parts = (
        SEGMENT_VERSION,
        sys.byteorder,
        session.memory.layout_version,
        session.kv_type,
        session.model.fingerprint,
    )
    digest = hashlib.blake2b(
        repr((*parts, SEGMENT_POSITIONS, POSITIONS)).encode(), digest_size=KEY_BYTES
    )
    for attention in session.config.attentions.values():
        if attention.rope is None:
            digest.update(struct.pack("<3Id", 0, 0, 0, 1.0))
            continue
        rotation = session.rotations[attention.rope]
        n_pairs = len(rotation.frequencies)
        pairs = (n_pairs, rotation.pair_step, rotation.pair_distance)
        digest.update(struct.pack("<3Id", *pairs, rotation.magnitude))
        digest.update(rotation.frequencies.astype("<f8").tobytes())
    return digest


def _updated(block: hashlib.blake2b, ids: Sequence[int]) -> hashlib.blake2b:
    updated = block.copy()
    updated.update(np.array(ids, "<i4").tobytes())
    return updated


def find(directory: Path, session: Session, ids: Sequence[int]) -> SavedMatch:
    """Find the longest saved prefix of some tokens, without reading keys and values.

    Args:
        directory: directory of the segments; it need not exist.
        session: session to restore. Sizes of payloads must suit its memory.

    Raises:
        EngineError: the model file was changed.
    """
    children = _names_by_parent(directory)
    keys = PrefixKeys(session)
    pieces = list[SavedPiece]()
    n = 0
    while n < len(ids):
        segments = filter(None, map(Segment.of_name, children.get(keys.at(ids, n), ())))
        block = _Block(
            directory, ids, [segment for segment in segments if segment.first == n], session.memory
        )
        n_agreed, block_pieces = block.longest(keys)
        pieces += block_pieces
        if n_agreed < n + SEGMENT_POSITIONS:
            return SavedMatch(max(n, n_agreed), pieces)
        n = n_agreed
    return SavedMatch(n, pieces)


def _names_by_parent(directory: Path) -> dict[str, list[str]]:
    """Return the names in a directory by the key of the prefix that their segments continue; empty
    if the directory does not exist."""
    children: dict[str, list[str]] = {}
    with suppress(OSError):
        for name in os.listdir(directory):
            children.setdefault(name[: 2 * KEY_BYTES], []).append(name)
    return children


def following(
    directory: Path, session: Session, ids: Sequence[int], end_ids: Collection[int]
) -> Iterator[list[int]]:
    """Yield the sequences of tokens that follow others in saved segments, up to the first end
    token or the last saved one.

    Args:
        directory: directory of the segments; it need not exist.
        session: session of the tokens.
        ids: token ids to find.
        end_ids: ids of the end tokens.

    Raises:
        EngineError: the model file was changed.
    """
    children = _names_by_parent(directory)
    first = len(ids) // SEGMENT_POSITIONS * SEGMENT_POSITIONS
    # Key of a prefix, tokens with which its segment must begin, and the tokens after ``ids`` so far
    pending: list[tuple[str, list[int], list[int]]] = [
        (PrefixKeys(session).at(ids, first), list(ids[first:]), [])
    ]
    n_read = 0
    while pending:
        key, beginning, before = pending.pop()
        is_continued = False
        for segment in filter(None, map(Segment.of_name, children.get(key, ()))):
            n_read += 1
            if n_read > MOST_FOLLOWING:
                return
            segment_ids = _token_ids(directory, segment)
            if segment_ids[: len(beginning)] != beginning or len(segment_ids) == len(beginning):
                continue
            is_continued = True
            new_ids = segment_ids[len(beginning) :]
            n_new = next((n for n, i in enumerate(new_ids) if i in end_ids), len(new_ids))
            tokens = [*before, *new_ids[:n_new]]
            if n_new == len(new_ids) and segment.last % SEGMENT_POSITIONS == 0:
                pending.append((segment.key, [], tokens))
            else:
                yield tokens
        if before and not is_continued:
            yield before


def _token_ids(directory: Path, segment: Segment) -> list[int]:
    """Return the token ids of a segment; empty if the file is missing or damaged."""
    try:
        with opened(directory / segment.name) as fd:
            head = read_head(fd, segment)
    except OSError:
        return []
    if head is None:
        return []
    return head[0]


def names_of(directory: Path, session: Session, ids: Sequence[int]) -> list[str]:
    """Return the names of the segments that hold only these tokens. Segments that only begin with
    them are left out.

    Args:
        directory: directory of the segments; it need not exist.
        session: session to restore.

    Raises:
        EngineError: the model file was changed.
    """
    try:
        segments = list(filter(None, map(Segment.of_name, os.listdir(directory))))
    except OSError:
        return []
    keys = PrefixKeys(session)
    return [
        segment.name
        for segment in segments
        if segment.last <= len(ids) and keys.at(ids, segment.last) == segment.key
    ]


@dataclass(frozen=True)
class _Block:
    """Segments that continue one prefix, and the requested tokens."""

    directory: Path
    ids: Sequence[int]
    segments: list[Segment]
    memory: LayerMemory

    def longest(self, keys: PrefixKeys) -> tuple[int, list[SavedPiece]]:
        """Return the position up to which the segments agree with the requested tokens, and the
        pieces to restore: the longest one, and those with a recurrent state."""
        ids = self.ids
        matches = list[tuple[int, SavedPiece]]()
        other_segments = list[Segment]()
        for segment in self.segments:
            if segment.last <= len(ids) and keys.at(ids, segment.last) == segment.key:
                matches += self._piece(segment, segment.last)
            else:
                other_segments.append(segment)
        n_agreed = max((n for n, _ in matches), default=0)
        if other_segments and n_agreed < min(len(ids), other_segments[0].first + SEGMENT_POSITIONS):
            by_agreement = {
                self._shared(segment): segment for segment in other_segments[:MOST_SIBLINGS]
            }
            if max(by_agreement) > n_agreed:
                matches += self._piece(by_agreement[max(by_agreement)], max(by_agreement))
        matches.sort(key=lambda match: (match[0], match[1].n_bytes))
        needed = [
            piece
            for _, piece in matches
            if piece is matches[-1][1] or self.memory.has_state(piece.copied)
        ]
        return (matches[-1][0] if matches else 0), needed

    def _shared(self, segment: Segment) -> int:
        """Return the position up to which a segment with other tokens at its end agrees."""
        segment_ids = _token_ids(self.directory, segment)
        if not segment_ids:
            return 0
        return segment.first + common_prefix(segment_ids, self.ids[segment.first :])

    def _piece(self, segment: Segment, end: int) -> list[tuple[int, SavedPiece]]:
        """Return the piece of a segment, whose tokens must be the requested ones up to ``end``;
        empty if its size is wrong."""
        path = self.directory / segment.name
        wanted_ids = list(self.ids[segment.first : end])
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
                    is_match = bool(head) and ids[: len(wanted_ids)] == wanted_ids
                    is_sound = is_match and read_into(fd, view) and zlib.crc32(view) == checksum
            except FileNotFoundError:
                return False
            except OSError:
                is_sound = False
            if is_sound:
                mark_used(path)
            else:
                with suppress(OSError):
                    path.unlink()  # it is written again only if it is missing
            return is_sound

        return [(end, SavedPiece(segment.first, segment.last, n_bytes, read))]


def mark_used(path: Path) -> None:
    """Record the use of a segment; those used longest ago are dropped first."""
    with suppress(OSError):
        os.utime(path)


def read_head(fd: int, segment: Segment) -> tuple[list[int], int] | None:
    """Read the token ids and the checksum of a segment; None if they are damaged or do not belong
    to its name.

    Args:
        fd: descriptor of the open file, at its beginning.
        segment: fields of the file's name.
    """
    raw = bytearray(segment.head_bytes)
    if not read_into(fd, memoryview(raw)):
        return None
    digest, checksum = _HEAD.unpack_from(raw)
    ids = bytes(raw[_HEAD.size :])
    if digest == segment.digest(checksum, ids):
        return np.frombuffer(ids, "<i4").tolist(), checksum
    return None


def write_segment(
    directory: Path, segment: Segment, token_ids: Sequence[int], payload: memoryview
) -> None:
    """Write a segment completely, or not at all.

    Args:
        token_ids: token ids of its positions.

    Raises:
        OSError: the segment was not written.
    """
    checksum = zlib.crc32(payload)
    ids = np.array(token_ids, "<i4").tobytes()
    head = _HEAD.pack(segment.digest(checksum, ids), checksum) + ids
    # Another program may be writing the same segment.
    temporary = directory / f".{segment.name}.{secrets.token_hex(4)}"
    fd = os.open(temporary, _CREATE, 0o600)
    try:
        try:
            for content in (head, payload):
                remaining = memoryview(content)
                while remaining:
                    remaining = remaining[os.write(fd, remaining) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, directory / segment.name)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
