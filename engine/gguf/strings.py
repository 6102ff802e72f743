"""Arrays of strings in a file, located without creating Python strings: a list of models needs only
their number, a vocabulary all of them at once.

Each string begins with its length in eight bytes, so that where one begins is known from the one
before. Nearly all are shorter than 256 bytes and hold no zero byte: seven zero bytes in a row then
mark the lengths. All marks are found at once, and each is compared with the end of the string
before it. Other strings are stepped over one by one. The result equals that of stepping from string
to string.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, overload

import numpy as np

_LENGTH = Struct("<Q")
_LENGTH_BYTES = 8
_WINDOW_BYTES = 1 << 18
_LONGEST_PLAIN_BYTES = _LENGTH_BYTES + 255
_FEW = 64
"""Limit on the number of strings that are stepped over one by one; an array is slower for so
few."""
_MORE_AT_A_BREAK = 8
"""Strings stepped over one by one after the first break, twice as many after the second, and so
on."""

Ends = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class StringCount:
    """An array of strings of which only the number was read."""

    count: int

    def __len__(self) -> int:
        return self.count


class StringArray(Sequence[bytes]):
    """An array of strings in the file's encoding; strings are created on access, or all at once.

    Args:
        raw: the array, each string after its 8-byte length.
        ends: (n,) uint32, offset in ``raw`` of each string's end; a header is shorter than 4 GiB.
    """

    def __init__(self, raw: bytes, ends: np.ndarray[Any, np.dtype[np.uint32]]) -> None:
        self._raw = raw
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return self._raw[
            (int(self._ends[at - 1]) if at else 0) + _LENGTH_BYTES : int(self._ends[at])
        ]

    @property
    def n_bytes(self) -> int:
        """Bytes of the array in the file."""
        return len(self._raw)

    def joined(self) -> bytes:
        """All strings with zero bytes between, equal to ``b"\\0".join``, without creating each
        string."""
        if not len(self):
            return b""
        content = np.frombuffer(self._raw, np.uint8).copy()
        keeps = np.ones(len(self._raw), bool)
        lengths_at = np.concatenate(([0], self._ends[:-1].astype(np.int64)))
        for k in range(_LENGTH_BYTES):
            keeps[lengths_at + k] = False
        keeps[lengths_at[1:]] = True
        content[lengths_at[1:]] = 0
        return bytes(content[keeps])


def joined(strings: Sequence[bytes]) -> bytes:
    """Strings with zero bytes between; many vocabularies have tokens of newlines."""
    if isinstance(strings, StringArray):
        return strings.joined()
    return b"\0".join(strings)


class StringsCutError(ValueError):
    """An array is longer than the bytes left; string ``index`` begins at offset ``at``."""

    def __init__(self, at: int, index: int) -> None:
        super().__init__(f"string {index} at {at}")
        self.at = at
        self.index = index


def end_of_strings(data: mmap.mmap, at: int, end: int, count: int) -> int:
    """Return where ``count`` strings end that begin at ``at``.

    Raises:
        StringsCutError: they do not end before ``end``.
    """
    for ends in _ends(data, at, end, count):
        at = int(ends[-1])
    return at


def read_strings(data: mmap.mmap, at: int, end: int, count: int) -> StringArray:
    """Find ``count`` strings that begin at ``at``.

    Raises StringsCutError: they do not end before ``end``.
    """
    found = [(ends - at).astype(np.uint32) for ends in _ends(data, at, end, count)]
    if found:
        ends = np.concatenate(found)
    else:
        ends = np.zeros(0, np.uint32)
    return StringArray(data[at : at + int(ends[-1]) if count else at], ends)


def _ends(data: mmap.mmap, at: int, end: int, count: int) -> Iterator[Ends]:
    """Yield the offsets of the strings' ends, some at a time."""
    left = count
    n_breaks = 0
    while left > _FEW:
        window_end = min(end, at + _WINDOW_BYTES)
        ends = _stride(data, at, window_end, left)
        if ends.size:
            yield ends
            left = left - ends.size
            at = int(ends[-1])
            if window_end - at < _LONGEST_PLAIN_BYTES or left <= _FEW:
                continue  # the window is used up, or few strings are left
        # A file that breaks every stride is stepped through in growing pieces, so that it cannot
        # slow the reader down.
        n_breaks += 1
        n_walked = min(left, n_breaks * _MORE_AT_A_BREAK)
        ends = _walk(data, at, end, n_walked, count - left)
        yield ends
        left = left - n_walked
        at = int(ends[-1])
    if left:
        yield _walk(data, at, end, left, count - left)


def _walk(data: mmap.mmap, at: int, end: int, n_steps: int, index: int) -> Ends:
    """Step over strings one by one; returns where each ends."""
    length_at = _LENGTH.unpack_from
    ends = []
    for step in range(n_steps):
        if (
            end - at < _LENGTH_BYTES
            or (length := length_at(data, at)[0]) > end - at - _LENGTH_BYTES
        ):
            raise StringsCutError(at, index + step)
        at += _LENGTH_BYTES + length
        ends.append(at)
    return np.array(ends, np.int64)


def _stride(data: mmap.mmap, at: int, end: int, most: int) -> Ends:
    """Step over plain strings, all that follow each other and end before ``end``; returns the
    same."""
    window = np.frombuffer(data[at:end], np.uint8)
    starts = _plain_lengths(window)
    if not starts.size or starts[0]:
        return np.zeros(0, np.int64)
    lengths = window[starts].astype(
        np.int64
    )  # before numpy 2, a sum with a scalar would stay in eight bits
    ends: Ends = at + starts + _LENGTH_BYTES + lengths
    follows = ends[:-1] == at + starts[1:]
    if follows.size and not follows.all():
        n_steps = int(np.argmin(follows)) + 1
    else:
        n_steps = int(starts.size)
    n_steps = min(n_steps, most)
    if ends[n_steps - 1] > end:
        n_steps -= 1
    return ends[:n_steps]


def _plain_lengths(
    window: np.ndarray[Any, np.dtype[np.uint8]],
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return where eight bytes are a length from 0 to 255."""
    zero = window == 0
    pairs = zero[:-1] & zero[1:]
    fours = pairs[:-2] & pairs[2:]
    sevens = fours[:-3] & fours[3:]
    return np.flatnonzero(sevens[1:])
