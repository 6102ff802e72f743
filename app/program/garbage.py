"""When Python looks for garbage: not while a start makes thousands of things that stay; and freed
memory given back."""

from __future__ import annotations

import gc
from contextlib import suppress

_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
"""Parameters of glibc's ``mallopt``."""
LARGE_BLOCK_BYTES = 1 << 20
MOST_ARENAS = 2
YOUNG_OBJECTS = 10_000
"""New objects after which Python's collector runs. With its default of 700 it ran 80 times in seven
seconds of a reply and took 22 to 28 ms of processor time; with this value it runs 5 times and takes
15 to 21 ms."""


def postpone() -> None:
    """Do not look until ``settle``: to go through what a start makes, again and again, takes 60
    ms."""
    gc.disable()


def settle() -> None:
    """Look from now on; what exists by now stays, and need not be gone through again."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
    gc.enable()


def look_through_new() -> None:
    """Go through what a model's opening has made, now: else that happens in the first reply, for 15
    ms.

    Not frozen, or a model that is closed later could stay with what points to itself.
    """
    gc.collect(1)


def take_apart() -> None:
    """Free what a closed model has left, also of what was there when ``settle`` was called."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def keep_memory_together() -> None:
    """Have large blocks given back as soon as they are free.

    Threads then share what they allocate from.

    By itself, glibc keeps blocks of up to 32 MiB once one of them was freed, and has eight heaps
    for each processor, whose gaps add up where threads come and go for weeks. Call it before there
    are threads. Without glibc, nothing happens.
    """
    import ctypes

    with suppress(AttributeError, OSError, TypeError):
        adjust = ctypes.CDLL(None).mallopt
        adjust(_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)
        adjust(_ARENA_MAX, MOST_ARENAS)


def give_back_memory() -> None:
    """Return what is free to the system, where its C library can."""
    import ctypes  # not with the module: the first frame would wait for it

    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
