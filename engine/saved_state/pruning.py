"""Bytes of a directory of segments on the disk, and dropping what was used longest ago.

Names and sizes are read, and heads where one segment may end within another; no keys and values.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.saved_state.segments import Segment, read_head
from engine.saved_state.state_file import is_own_file, opened

_LEFT_OVER_S = 3600.0
"""Age in seconds at which an unfinished file is no one's any more."""


@dataclass(frozen=True)
class SegmentFile:
    """One segment on the disk.

    Attributes:
        path: of its file.
        segment: as its name says.
        n_bytes: size of the file.
        used_s: wall time of the last use of it, or of a segment that continues it.
    """

    path: Path
    segment: Segment
    n_bytes: int
    used_s: float


def stored_in(place: Path) -> list[SegmentFile]:
    """Return all segments of a directory in the order in which they may be dropped.

    Used longest ago first, and none before those that continue it.
    """
    found = []
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            segment = Segment.of_name(entry.name)
            with suppress(OSError):
                about = entry.stat(follow_symlinks=False)
                if segment is not None and is_own_file(about):
                    found.append(
                        SegmentFile(Path(entry.path), segment, about.st_size, about.st_mtime)
                    )
                elif entry.name.startswith(".") and time.time() - about.st_mtime > _LEFT_OVER_S:
                    os.unlink(entry.path)
    found.sort(key=lambda one: -one.segment.last)
    used_s: dict[str, float] = {}
    for one in found:  # those that continue a segment come before it
        key = one.segment.key
        parent = one.segment.parent
        used_s[key] = max(one.used_s, used_s.get(key, 0.0))
        used_s[parent] = max(used_s[key], used_s.get(parent, 0.0))
    dated = [
        SegmentFile(one.path, one.segment, one.n_bytes, used_s[one.segment.key]) for one in found
    ]
    return sorted(dated, key=lambda one: (one.used_s, -one.segment.last))


def drop_stored(stored: Iterable[SegmentFile], excess_bytes: int) -> int:
    """Delete segments, the first ones first, until enough is free; returns the bytes that were
    deleted."""
    dropped_bytes = 0
    for one in stored:
        if dropped_bytes >= excess_bytes:
            break
        with suppress(OSError):
            one.path.unlink()
            dropped_bytes += one.n_bytes
    return dropped_bytes


@dataclass(frozen=True)
class Prefix:
    """One way from the root to where nothing goes on.

    Attributes:
        stored: its segments, the last one first.
        shared_bytes: size of those that other prefixes have too.
    """

    stored: list[SegmentFile]
    shared_bytes: int

    @property
    def n_tokens(self) -> int:
        """Number of its tokens."""
        return self.stored[0].segment.last

    @property
    def n_bytes(self) -> int:
        """Size of its segments."""
        return sum(one.n_bytes for one in self.stored)

    @property
    def used_s(self) -> float:
        """Wall time of its last use."""
        return self.stored[0].used_s


def prefixes_in(place: Path) -> list[Prefix]:
    """Return all prefixes of a directory that are whole, the one used last first."""
    stored = stored_in(place)
    by_key = {one.segment.key: one for one in stored}
    ways = []
    for end in _ends(stored):
        way = [end]
        while (before := by_key.get(way[-1].segment.parent)) is not None:
            way.append(before)
        if way[-1].segment.first == 0:
            ways.append(way)
    n_ways = Counter(one.segment.key for way in ways for one in way)
    shared = [sum(one.n_bytes for one in way if n_ways[one.segment.key] > 1) for way in ways]
    found = [Prefix(way, n_bytes) for way, n_bytes in zip(ways, shared, strict=True)]
    return sorted(found, key=lambda one: -one.used_s)


def _ends(stored: list[SegmentFile]) -> list[SegmentFile]:
    """Return the segments that nothing goes on from: no other one, and none next to them that
    begins alike."""
    siblings: dict[str, list[SegmentFile]] = {}
    for one in stored:
        siblings.setdefault(one.segment.parent, []).append(one)
    ends = []
    for one in stored:
        if one.segment.key not in siblings:
            others = [
                other
                for other in siblings[one.segment.parent]
                if other.segment.last > one.segment.last
            ]
            if others:
                token_ids = _token_ids(one)
            else:
                token_ids = []
            if not any(_token_ids(other)[: len(token_ids)] == token_ids for other in others):
                ends.append(one)
    return ends


def _token_ids(stored: SegmentFile) -> list[int]:
    """Return the token ids of a segment; none where its head is damaged."""
    with suppress(OSError), opened(stored.path) as fd:
        head = read_head(fd, stored.segment)
        if head is not None:
            return head[0]
        return []
    return []
