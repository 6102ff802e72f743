"""Memory that kernels address."""

import mmap
from pathlib import Path

import pytest

from engine.machine.memory import Memory

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_a_large_region_gets_huge_pages_if_the_system_has_them() -> None:
    if not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text():
        pytest.skip("this system has no transparent huge pages, or they are off")
    memory = Memory(64 << 20)
    memory.bytes[:] = 1
    assert memory.huge_backed_bytes() > 0


def test_slowly_filled_memory_is_backed_page_by_page() -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("this system does not say how much memory a process has")
    before_bytes = resident_bytes()
    memory = Memory(256 << 20, fills_slowly=True)
    for offset in range(0, len(memory.bytes), 2 << 20):
        memory.bytes[offset] = 1
    assert resident_bytes() - before_bytes < 32 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
