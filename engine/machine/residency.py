"""How much of a mapped file lies in memory, and bringing the rest in by reading it in order.

A decode step that finds its weights on disk reads them by page faults, from several threads at once: on a spinning disk
those are seeks. One sequential pass before the first token costs the time of one read.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

STEP_BYTES = 8 << 20
GLANCE_PAGES = 2048
"""Enough, spread over a file, to see whether it is in memory."""
_MADV_POPULATE_READ = 22
"""Linux 5.14; Python 3.10 to 3.13 have no name for it, and their ``madvise`` keeps the GIL."""
PART_PAGES = 128
RESIDENT_ENOUGH = 0.98
"""A file so far in memory is left alone: a few missing pages cost less than a pass over all of them."""


def resident_bytes(view: np.ndarray[Any, np.dtype[np.uint8]], most_pages: int = 0) -> int | None:
    """Bytes of a map that are in memory now; None where the system does not say.

    Args:
        view: (n,) uint8 over the whole map, so that it begins on a page.
        most_pages: look at evenly spread parts of so many pages in all, and take the rest to be like them; 0 looks at
            every page, which takes some 80 ns each where a file is cached but not mapped yet.
    """
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (AttributeError, OSError, TypeError):
        return None
    n_pages = (len(view) + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    seen = resident = 0
    for first, count in _parts(n_pages, most_pages):
        pages = np.zeros(count, np.uint8)
        start = first * mmap.PAGESIZE
        address = ctypes.c_void_p(view.ctypes.data + start)
        length = ctypes.c_size_t(min(count * mmap.PAGESIZE, len(view) - start))
        if mincore(address, length, pages.ctypes.data_as(ctypes.c_void_p)) != 0:
            return None
        seen, resident = seen + count, resident + int((pages & 1).sum())
    return min(len(view), round(n_pages * resident / seen) * mmap.PAGESIZE) if seen else 0


def _parts(n_pages: int, most_pages: int) -> list[tuple[int, int]]:
    """First page and number of pages of each part to look at."""
    if not most_pages or n_pages <= most_pages:
        return [(0, n_pages)] if n_pages else []
    n_parts = max(1, most_pages // PART_PAGES)
    return [(i * (n_pages - PART_PAGES) // max(1, n_parts - 1), PART_PAGES) for i in range(n_parts)]


def read_in_order(paths: Sequence[Path], size_bytes: int, progress: Callable[[int, int], None]) -> None:
    """Read files once from begin to end, so that the system keeps them in memory; errors end it quietly.

    Args:
        size_bytes: of all files together.
        progress: called with (bytes done, bytes in all) after every few megabytes.
    """
    buffer = bytearray(STEP_BYTES)
    done = 0
    try:
        for path in paths:
            with path.open("rb", buffering=0) as file:
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
                while n := file.readinto(buffer):
                    done += n
                    progress(min(done, size_bytes), size_bytes)
    except OSError:
        return  # the map will say what is wrong, page by page


class MappingAhead:
    """Enters the pages of a map that lie in memory into the page table, in a thread of its own.

    The first walk over a model otherwise does that by faults, one for every 64 kB, and takes twice as long as the
    second. Without effect outside Linux, and for a file that still lies on disk.

    Args:
        views: (n,) uint8 over whole maps. They stay in use until ``stop`` has returned.
    """

    def __init__(self, views: Sequence[np.ndarray[Any, np.dtype[np.uint8]]]) -> None:
        self._views = list(views)
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        if sys.platform == "linux":
            thread = threading.Thread(target=self._run, name="map-ahead", daemon=True)
            with suppress(RuntimeError):  # a limit on processes, most often a container's: it goes without
                thread.start()
                self._thread = thread

    def stop(self) -> None:
        """End it and let go of the maps; takes as long as a few megabytes."""
        self._is_stopped.set()
        self.wait()
        self._views.clear()

    def wait(self) -> None:
        """Wait until it is done."""
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
