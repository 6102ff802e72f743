"""The limit on a process's address space (``ulimit -v``), which refuses memory that the machine would have.

Libraries that it refuses to load say all kinds of things, so whoever shows an error asks here what is behind it.
"""

from __future__ import annotations

LEAST_BYTES = 300 << 20
"""Below that, numpy does not load, and OpenBLAS ends the process by itself."""
NEEDED_BYTES = 1 << 30
"""For the program and what it compiles, beside the model."""


def limit_bytes() -> int | None:
    """Return the limit; None for none."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit in (resource.RLIM_INFINITY, -1) else limit


def blame(limit: int) -> str:
    """Say that this limit is too small, about what is needed and what to do."""
    return (
        f"the limit of {limit >> 20:,} MiB on the address space (ulimit -v) is too small: about "
        f"{NEEDED_BYTES >> 20:,} MiB and the size of the model are needed (raise it: ulimit -v unlimited)"
    )
