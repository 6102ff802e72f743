"""Memory that kernels address."""

from pathlib import Path

import pytest

from engine.memory import Memory

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_a_large_region_gets_huge_pages_where_the_system_has_them() -> None:
    if not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text():
        pytest.skip("this system has no transparent huge pages, or they are off")
    memory = Memory(64 << 20)
    memory.bytes[:] = 1
    assert memory.huge_backed_bytes() > 0
