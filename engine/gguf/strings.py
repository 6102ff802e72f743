"""Arrays of strings in a file, located without creating Python strings.

A list of models needs only their number, a vocabulary needs all strings at once. Each string begins
with its length in eight bytes, so the end of a string is the start of the following string. Nearly
all strings are shorter than 256 bytes and contain no zero byte: seven zero bytes in a row then mark
a length. All marks are searched at once, and each is compared with the end of the string before it.
Other strings are read one by one. The result equals that of reading all strings one by one.
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
"""Number of strings up to which they are read one by one; arrays are slower for so few."""
_MORE_AT_A_BREAK = 8
"""Number of strings to read one by one after the first break; twice as many after the second, and
so on."""

Ends = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class StringCount:
    """Length of an array of strings that was not read."""

    count: int

    def __len__(self) -> int:
        return self.count


class StringArray(Sequence[bytes]):
    """Array of strings in the encoding of the file; strings are created on access.

    Args:
        raw: Bytes of the array, each string after its 8-byte length.
        ends: (n,) uint32, offset in ``raw`` of the end of each string; a header is shorter than
            4 GiB.
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
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        if position:
            start = int(self._ends[position - 1])
        else:
            start = 0
        return self._raw[start + _LENGTH_BYTES : int(self._ends[position])]

    @property
    def n_bytes(self) -> int:
        """Bytes of the array in the file."""
        return len(self._raw)

    def join_with_zeros(self) -> bytes:
        """Return all strings with zero bytes between them, without creating each string."""
        if not len(self):
            return b""
        content = np.frombuffer(self._raw, np.uint8).copy()
        is_content = np.ones(len(self._raw), bool)
        length_offsets = np.concatenate(([0], self._ends[:-1].astype(np.int64)))
        for k in range(_LENGTH_BYTES):
            is_content[length_offsets + k] = False
        is_content[length_offsets[1:]] = True
        content[length_offsets[1:]] = 0
        return bytes(content[is_content])


def join_with_zeros(strings: Sequence[bytes]) -> bytes:
    """Return strings with zero bytes between them; many vocabularies have tokens with newlines."""
    if isinstance(strings, StringArray):
        return strings.join_with_zeros()
    return b"\0".join(strings)


class StringsCutError(ValueError):
    """Error of an array that is longer than the remaining bytes: string ``index`` begins at
    ``offset``."""

    def __init__(self, offset: int, index: int) -> None:
        super().__init__(f"string {index} at {offset}")
        self.offset = offset
        self.index = index


def end_of_strings(data: mmap.mmap, offset: int, end: int, count: int) -> int:
    """Return the end of ``count`` strings that begin at ``offset``.

    Raises:
        StringsCutError: The strings do not end before ``end``.
    """
    for ends in _ends(data, offset, end, count):
        offset = int(ends[-1])
    return offset


def read_strings(data: mmap.mmap, offset: int, end: int, count: int) -> StringArray:
    """Locate ``count`` strings that begin at ``offset``.

    Raises:
        StringsCutError: The strings do not end before ``end``.
    """
    runs = [(ends - offset).astype(np.uint32) for ends in _ends(data, offset, end, count)]
    if runs:
        ends = np.concatenate(runs)
    else:
        ends = np.zeros(0, np.uint32)
    return StringArray(data[offset : offset + int(ends[-1]) if count else offset], ends)


def _ends(data: mmap.mmap, offset: int, end: int, count: int) -> Iterator[Ends]:
    """Yield the offsets of the ends of strings, in groups."""
    n_remaining = count
    n_breaks = 0
    while n_remaining > _FEW:
        window_end = min(end, offset + _WINDOW_BYTES)
        ends = _ends_of_plain(data, offset, window_end, n_remaining)
        if ends.size:
            yield ends
            n_remaining = n_remaining - ends.size
            offset = int(ends[-1])
            if window_end - offset < _LONGEST_PLAIN_BYTES or n_remaining <= _FEW:
                continue  # the window is used up, or few strings are left
        # A file that breaks every group is read in growing pieces, so it cannot slow the reader
        # down.
        n_breaks += 1
        n_single = min(n_remaining, n_breaks * _MORE_AT_A_BREAK)
        ends = _ends_one_by_one(data, offset, end, n_single, count - n_remaining)
        yield ends
        n_remaining = n_remaining - n_single
        offset = int(ends[-1])
    if n_remaining:
        yield _ends_one_by_one(data, offset, end, n_remaining, count - n_remaining)


def _ends_one_by_one(data: mmap.mmap, offset: int, end: int, n_steps: int, index: int) -> Ends:
    """Return the ends of strings, read one by one."""
    length_at = _LENGTH.unpack_from
    ends = []
    for step in range(n_steps):
        if (
            end - offset < _LENGTH_BYTES
            or (length := length_at(data, offset)[0]) > end - offset - _LENGTH_BYTES
        ):
            raise StringsCutError(offset, index + step)
        offset += _LENGTH_BYTES + length
        ends.append(offset)
    return np.array(ends, np.int64)


def _ends_of_plain(data: mmap.mmap, offset: int, end: int, limit: int) -> Ends:
    """Return the ends of consecutive plain strings before ``end``."""
    window = np.frombuffer(data[offset:end], np.uint8)
    starts = _plain_lengths(window)
    if not starts.size or starts[0]:
        return np.zeros(0, np.int64)
    lengths = window[starts].astype(
        np.int64
    )  # before numpy 2, a sum with a scalar would stay in eight bits
    ends: Ends = offset + starts + _LENGTH_BYTES + lengths
    follows = ends[:-1] == offset + starts[1:]
    if follows.size and not follows.all():
        n_steps = int(np.argmin(follows)) + 1
    else:
        n_steps = int(starts.size)
    n_steps = min(n_steps, limit)
    if ends[n_steps - 1] > end:
        n_steps -= 1
    return ends[:n_steps]


def _plain_lengths(
    window: np.ndarray[Any, np.dtype[np.uint8]],
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the offsets of eight bytes that are a length from 0 to 255."""
    zero = window == 0
    pairs = zero[:-1] & zero[1:]
    fours = pairs[:-2] & pairs[2:]
    sevens = fours[:-3] & fours[3:]
    return np.flatnonzero(sevens[1:])
