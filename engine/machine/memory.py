"""Anonymous memory that kernels address: aligned, with huge pages for large regions, freed with the
object."""

import mmap
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import MemoryPlanError
from engine.machine import address_space

_HUGE_PAGE_BYTES = 2 << 20
_HUGE_PAGE_SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
"""Flags of a private map.

Python's default is a shared map, which the kernel treats as a file in memory: it gets huge pages
only if an administrator has allowed them for such files.
"""


class Memory:
    """Zeroed, anonymous memory region.

    Args:
        n_bytes: Size, at least 1; the system allocates pages once they are written.
        fills_slowly: Use small pages only. In a region that is written little by little all
            over, such as a KV cache, the first write to each huge page would allocate and zero
            all of it.

    Raises:
        MemoryPlanError: the system refuses the region.
    """

    def __init__(self, n_bytes: int, fills_slowly: bool = False) -> None:
        self.n_bytes = max(1, n_bytes)
        try:
            self._map = mmap.mmap(-1, self.n_bytes, **_PRIVATE)
        except (OSError, ValueError, OverflowError) as error:
            limit = address_space.limit_bytes()
            reason = address_space.blame(limit) if limit is not None else error
            raise MemoryPlanError(
                f"the system gives no {shown_bytes(n_bytes)} of memory: {reason}"
            ) from None
        if fills_slowly:
            advice = "MADV_NOHUGEPAGE"
        else:
            advice = "MADV_HUGEPAGE"
        if self.n_bytes >= _HUGE_PAGE_BYTES and hasattr(mmap, advice):
            with suppress(OSError):  # a kernel without huge pages; small pages serve as well
                self._map.madvise(getattr(mmap, advice))
        self.bytes: np.ndarray[Any, np.dtype[np.uint8]] = np.frombuffer(self._map, np.uint8)
        self.address = int(self.bytes.ctypes.data)

    def huge_backed_bytes(self) -> int:
        """Return the bytes of the region in huge pages; 0 if the system does not report them."""
        try:
            mappings = Path("/proc/self/smaps").read_text().splitlines()
        except OSError:
            return 0
        inside = False
        total = 0
        for line in mappings:
            if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                start = int(match[1], 16)
                end = int(match[2], 16)
                inside = start < self.address + self.n_bytes and self.address < end
            elif inside and line.startswith("AnonHugePages:"):
                total += 1024 * int(line.split()[1])
        return min(total, self.n_bytes)

    def array(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> np.ndarray[Any, Any]:
        """Return a view of part of the region, from ``offset`` bytes on; the view keeps the region
        alive."""
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(self._map, dtype, count, offset).reshape(shape)


def gives_huge_pages(switch: Path = _HUGE_PAGE_SWITCH) -> bool:
    """Return whether the system may grant transparent huge pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return False
    try:
        return "[never]" not in switch.read_text()
    except OSError:
        return True


def shown_bytes(n_bytes: float) -> str:
    """Return a size as text in decimal units: ``1.9 GB``, ``212 MB``."""
    if n_bytes >= 1e9:
        return f"{n_bytes / 1e9:.1f} GB"
    return f"{n_bytes / 1e6:.0f} MB"
