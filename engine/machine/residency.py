"""Share of a mapped file in memory, and loading the rest by reading it in order.

Without it, decode reads weights from disk by page faults from several threads at once: on a
spinning disk those are seeks. One sequential pass before the first token takes as long as reading
the file once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

STEP_BYTES = 8 << 20
GLANCE_PAGES = 2048
"""Number of pages, spread over a file, that show whether the file is in memory."""
_MADV_POPULATE_READ = 22
"""Advice of Linux 5.14. Python 3.10 to 3.13 have no name for it, and their ``madvise`` holds the
GIL."""
PART_PAGES = 128
RESIDENT_ENOUGH = 0.98
"""Share of a file in memory above which it is not read again: a few page faults cost less than a
pass over it."""


def resident_bytes(view: np.ndarray[Any, np.dtype[np.uint8]], max_pages: int = 0) -> int | None:
    """Return the bytes of a map that are in memory now; None if the system does not tell.

    Args:
        view: (n,) uint8 over the whole map, so that it begins on a page.
        max_pages: limit on the pages examined, in evenly spread parts; the result is extrapolated.
            0 examines every page, about 80 ns each for a file that is cached but not mapped yet.
    """
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (AttributeError, OSError, TypeError):
        return None
    n_pages = (len(view) + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    seen = resident = 0
    for first, count in _parts(n_pages, max_pages):
        pages = np.zeros(count, np.uint8)
        start = first * mmap.PAGESIZE
        address = ctypes.c_void_p(view.ctypes.data + start)
        length = ctypes.c_size_t(min(count * mmap.PAGESIZE, len(view) - start))
        if mincore(address, length, pages.ctypes.data_as(ctypes.c_void_p)) != 0:
            return None
        seen = seen + count
        resident = resident + int((pages & 1).sum())
    if seen:
        return min(len(view), round(n_pages * resident / seen) * mmap.PAGESIZE)
    return 0


def _parts(n_pages: int, max_pages: int) -> list[tuple[int, int]]:
    """Return (first page, number of pages) of each part to examine."""
    if not max_pages or n_pages <= max_pages:
        if n_pages:
            return [(0, n_pages)]
        return []
    n_parts = max(1, max_pages // PART_PAGES)
    return [(i * (n_pages - PART_PAGES) // max(1, n_parts - 1), PART_PAGES) for i in range(n_parts)]


def pages_without(n_bytes: int, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return (first byte, end) of each part of a file outside some ranges, which do not overlap.

    A page that is partly outside belongs to the part, so every part begins on a page.
    """
    spans = []
    start = 0
    for first, end in sorted(ranges):
        first_page = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
        end_page = end // mmap.PAGESIZE * mmap.PAGESIZE
        if first_page < end_page:
            spans.append((start, first_page))
            start = end_page
    return [(first, end) for first, end in [*spans, (start, n_bytes)] if first < end]


def read_in_order(
    places: Sequence[tuple[Path, int, int]], progress: Callable[[int, int], None]
) -> None:
    """Read parts of files once, in order, so the system caches them; a read error ends it silently.

    Args:
        places: file, first byte and end of each part.
        progress: called with (bytes done, bytes in all) after every few megabytes.
    """
    buffer = memoryview(bytearray(STEP_BYTES))
    done = 0
    size_bytes = sum(end - first for _, first, end in places)
    try:
        for path, first, end in places:
            with path.open("rb", buffering=0) as file:
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                file.seek(first)
                while n := file.readinto(buffer[: end - file.tell()]):
                    done += n
                    progress(done, size_bytes)
    except OSError:
        return  # reading the map will meet the same error


class MappingAhead:
    """Thread that enters the cached pages of a map into the page table.

    Otherwise the first pass over a model does that by page faults, one per 64 kB, and takes twice
    as long as the second. It has no effect outside Linux, nor for a file that is not cached.



    Args:
        views: (n,) uint8 over whole maps. They stay in use until ``stop`` has returned.
    """

    def __init__(self, views: Sequence[np.ndarray[Any, np.dtype[np.uint8]]]) -> None:
        self._views = list(views)
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        if sys.platform == "linux":
            thread = threading.Thread(target=self._run, name="map-ahead", daemon=True)
            with suppress(
                RuntimeError
            ):  # optional: the limit on processes is reached, as in some containers
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """End the thread and release the maps; waits for at most one step of ``STEP_BYTES``."""
        self._is_stopped.set()
        self.wait()
        self._views.clear()

    def wait(self) -> None:
        """Wait until the thread has finished."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        for view in self._views:
            resident = resident_bytes(view, GLANCE_PAGES)
            if resident is None or resident < RESIDENT_ENOUGH * len(view):
                return
            for start in range(0, len(view), STEP_BYTES):
                address = ctypes.c_void_p(view.ctypes.data + start)
                length = ctypes.c_size_t(min(STEP_BYTES, len(view) - start))
                if self._is_stopped.is_set() or madvise(address, length, _MADV_POPULATE_READ) != 0:
                    return
