"""Sizes of saved segments on disk, and deletion of those used longest ago.

Only names and sizes are read, and the heads of segments that may end within another.
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
"""Age in seconds at which an unfinished file is abandoned."""


@dataclass(frozen=True)
class SegmentFile:
    """File of a segment.

    Attributes:
        path: path of the file.
        segment: fields of its name.
        n_bytes: size of the file.
        used_s: wall time of the last use of this segment or of one that continues it.
    """

    path: Path
    segment: Segment
    n_bytes: int
    used_s: float


def stored_in(directory: Path) -> list[SegmentFile]:
    """Return all segments of a directory in the order in which they may be dropped.

    The one used longest ago is first. A segment comes after all segments that continue it.
    """
    files = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            segment = Segment.of_name(entry.name)
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if segment is not None and is_own_file(status):
                    files.append(
                        SegmentFile(Path(entry.path), segment, status.st_size, status.st_mtime)
                    )
                elif entry.name.startswith(".") and time.time() - status.st_mtime > _LEFT_OVER_S:
                    os.unlink(entry.path)
    files.sort(key=lambda file: -file.segment.last)
    used_s: dict[str, float] = {}
    for file in files:  # a segment comes after those that continue it
        key = file.segment.key
        parent = file.segment.parent
        used_s[key] = max(file.used_s, used_s.get(key, 0.0))
        used_s[parent] = max(used_s[key], used_s.get(parent, 0.0))
    dated = [
        SegmentFile(file.path, file.segment, file.n_bytes, used_s[file.segment.key])
        for file in files
    ]
    return sorted(dated, key=lambda file: (file.used_s, -file.segment.last))


def drop_stored(files: Iterable[SegmentFile], excess_bytes: int) -> int:
    """Delete segments in order until enough space is free; returns the number of deleted bytes."""
    dropped_bytes = 0
    for file in files:
        if dropped_bytes >= excess_bytes:
            break
        with suppress(OSError):
            file.path.unlink()
            dropped_bytes += file.n_bytes
    return dropped_bytes


@dataclass(frozen=True)
class Prefix:
    """Path of segments from the root of the tree to a leaf.

    Attributes:
        stored: segments, the last one first.
        shared_bytes: size of the segments that are part of other prefixes, too.
    """

    stored: list[SegmentFile]
    shared_bytes: int

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return self.stored[0].segment.last

    @property
    def n_bytes(self) -> int:
        """Size of the segments in bytes."""
        return sum(file.n_bytes for file in self.stored)

    @property
    def used_s(self) -> float:
        """Wall time of the last use."""
        return self.stored[0].used_s


def prefixes_in(directory: Path) -> list[Prefix]:
    """Return all complete prefixes of a directory, the one used last first."""
    files = stored_in(directory)
    by_key = {file.segment.key: file for file in files}
    paths = []
    for end in _ends(files):
        path = [end]
        while (previous := by_key.get(path[-1].segment.parent)) is not None:
            path.append(previous)
        if path[-1].segment.first == 0:
            paths.append(path)
    n_paths = Counter(file.segment.key for path in paths for file in path)
    shared_bytes = [
        sum(file.n_bytes for file in path if n_paths[file.segment.key] > 1) for path in paths
    ]
    prefixes = [Prefix(path, n_bytes) for path, n_bytes in zip(paths, shared_bytes, strict=True)]
    return sorted(prefixes, key=lambda file: -file.used_s)


def _ends(files: list[SegmentFile]) -> list[SegmentFile]:
    """Return the leaves: segments that no other segment continues, neither as a child nor as a
    longer sibling that begins with the same tokens."""
    siblings: dict[str, list[SegmentFile]] = {}
    for file in files:
        siblings.setdefault(file.segment.parent, []).append(file)
    ends = []
    for file in files:
        if file.segment.key not in siblings:
            longer = [
                sibling
                for sibling in siblings[file.segment.parent]
                if sibling.segment.last > file.segment.last
            ]
            token_ids = _token_ids(file) if longer else []
            if not any(_token_ids(sibling)[: len(token_ids)] == token_ids for sibling in longer):
                ends.append(file)
    return ends


def _token_ids(file: SegmentFile) -> list[int]:
    """Return the token ids of a segment; empty if its head is damaged."""
    with suppress(OSError), opened(file.path) as fd:
        head = read_head(fd, file.segment)
        if head is not None:
            return head[0]
    return []
