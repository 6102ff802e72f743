"""Limit on a process's address space (``ulimit -v``), which can refuse memory that the machine has.

Libraries that fail to load because of it give misleading errors; code that shows such an error asks
here for the cause.
"""

from __future__ import annotations

LEAST_BYTES = 300 << 20
"""Smallest address space, in bytes, with which NumPy loads; below it OpenBLAS ends the process."""
NEEDED_BYTES = 1 << 30
"""Address space of the program and its compiler, in bytes, without the model."""


def limit_bytes() -> int | None:
    """Return the limit in bytes; None if unlimited."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit in (resource.RLIM_INFINITY, -1):
        return None
    return limit


def blame(limit: int) -> str:
    """Return the message for a limit that is too small: how much is needed, and how to raise it."""
    return (
        f"the limit of {limit >> 20:,} MiB on the address space (ulimit -v) is too small: about "
        f"{NEEDED_BYTES >> 20:,} MiB and the size of the model are needed (raise it: ulimit "
        f"-v unlimited)"
    )
