"""When Python looks for garbage: not while a start makes thousands of things that stay."""

from __future__ import annotations

import gc


def postpone() -> None:
    """Do not look until ``settle``: to go through what a start makes, again and again, takes 60 ms."""
    gc.disable()


def settle() -> None:
    """Look from now on; what exists by now stays, and need not be gone through again."""
    gc.freeze()
    gc.enable()
