"""Where an array of strings ends, found without making any of them: a list of models wants only their number.

Each string begins with its length in eight bytes, so that where one begins is known from the one before. Nearly all
are shorter than 256 bytes and hold no zero byte: seven zero bytes in a row then mark the lengths, all of them are
found at once, and each is compared with where the string before it ends. What is no such string is stepped over by
itself. The result is the one that steps from string to string would have.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np

_LENGTH = Struct("<Q")
_LENGTH_BYTES = 8
_WINDOW_BYTES = 1 << 18
_LONGEST_PLAIN_BYTES = _LENGTH_BYTES + 255
_FEW = 64
"""So few strings are not worth an array."""
_MORE_AT_A_BREAK = 8
"""Strings that are walked over after the first stride, twice as many after the second, and so on."""


@dataclass(frozen=True)
class StringCount:
    """Stands for an array of strings of which only the number is known."""

    count: int

    def __len__(self) -> int:
        return self.count


class StringsCutError(ValueError):
    """An array is longer than the bytes there are; ``at`` is where its string ``index`` begins."""

    def __init__(self, at: int, index: int) -> None:
        super().__init__(f"string {index} at {at}")
        self.at, self.index = at, index


def end_of_strings(data: mmap.mmap, at: int, end: int, count: int) -> int:
    """Return where ``count`` strings end that begin at ``at``.

    Raises:
        StringsCutError: they do not end before ``end``.
    """
    left, n_breaks = count, 0
    while left > _FEW:
        window_end = min(end, at + _WINDOW_BYTES)
        n_steps, at = _stride(data, at, window_end, left)
        left -= n_steps
        if n_steps and window_end - at < _LONGEST_PLAIN_BYTES:
            continue  # the window is used up
        # A file that breaks every stride is walked through in longer and longer pieces: it cannot win time by that.
        n_breaks += 1
        n_walked = min(left, n_breaks * _MORE_AT_A_BREAK)
        at = _walk(data, at, end, n_walked, count - left)
        left -= n_walked
    return _walk(data, at, end, left, count - left)


def _walk(data: mmap.mmap, at: int, end: int, n_steps: int, index: int) -> int:
    """Step over strings one by one and return where the next begins."""
    length_at = _LENGTH.unpack_from
    for step in range(n_steps):
        if end - at < _LENGTH_BYTES or (length := length_at(data, at)[0]) > end - at - _LENGTH_BYTES:
            raise StringsCutError(at, index + step)
        at += _LENGTH_BYTES + length
    return at


def _stride(data: mmap.mmap, at: int, end: int, most: int) -> tuple[int, int]:
    """Step over plain strings, all that follow each other and end before ``end``; returns the same."""
    window = np.frombuffer(data[at:end], np.uint8)
    starts = _plain_lengths(window)
    if not starts.size or starts[0]:
        return 0, at
    ends = starts + (window[starts] + np.int64(_LENGTH_BYTES))
    follows = ends[:-1] == starts[1:]
    n_steps = int(np.argmin(follows)) + 1 if follows.size and not follows.all() else int(starts.size)
    n_steps = min(n_steps, most)
    if ends[n_steps - 1] > window.size:
        n_steps -= 1
    return n_steps, at + int(ends[n_steps - 1]) if n_steps else at


def _plain_lengths(window: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return where eight bytes are a length from 0 to 255."""
    zero = window == 0
    pairs = zero[:-1] & zero[1:]
    fours = pairs[:-2] & pairs[2:]
    sevens = fours[:-3] & fours[3:]
    return np.flatnonzero(sevens[1:])
