"""A plugin that gives kernels the form for VNNI with 512 bits on any processor: slow there, and as right."""

from engine.machine import level
from tests.engine import compiles_all as compiles_all

level.SUMS_FOURS = True
level.SIXTEEN_ROWS = True
level.SIXTEEN_COLUMNS = False
level.FOURS_OFFSET = 0 if level.HAS_ARM64 else -128


def pytest_sessionfinish() -> None:
    """Fail where the kernels were imported before this was said."""
    from engine.kernels import matmul

    assert matmul.sum_by_fours is matmul.sum_whole
