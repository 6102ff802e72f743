"""Garbage collection: none while the program starts, and freed memory returned to the system."""

from __future__ import annotations

import gc
from contextlib import suppress

_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
"""Parameters of glibc's ``mallopt``."""
LARGE_BLOCK_BYTES = 1 << 20
MOST_ARENAS = 2
YOUNG_OBJECTS = 10_000
"""New objects after which Python's collector runs. With the default of 700 it ran 80 times in seven
seconds of a reply and took 22 to 28 ms of processor time; now it runs 5 times and takes 15 to 21
ms.
"""


def postpone() -> None:
    """Turn the collector off until ``settle``. During a start it would take 60 ms."""
    gc.disable()


def settle() -> None:
    """Turn the collector on, and exempt all objects that exist now."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    gc.enable()


def look_through_new() -> None:
    """Collect the objects of a model's opening now, instead of in the first reply (15 ms).

    They are not exempted, so that a closed model can be freed.
    """
    gc.collect(1)


def take_apart() -> None:
    """Free what a closed model has left, including exempted objects."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def keep_memory_together() -> None:
    """Make glibc return large free blocks at once and share heaps between threads.

    Otherwise glibc keeps blocks of up to 32 MiB, and has eight heaps for each processor whose gaps
    add up over weeks. This must be called before threads start. Without glibc it does nothing.
    """
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        adjust = ctypes.CDLL(None).mallopt
        adjust(_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        adjust(_ARENA_MAX, MOST_ARENAS)


def give_back_memory() -> None:
    """Return free memory to the system, if the C library can."""
    import ctypes  # a module import would delay the first frame

    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
