"""A plugin that gives kernels the form for VNNI with eight rows in a register: slow without it, and as right."""

from engine.machine import level
from tests.engine import compiles_all as compiles_all

level.SUMS_FOURS = True
level.SIXTEEN_ROWS = level.SIXTEEN_COLUMNS = False
level.FOURS_OFFSET = 0 if level.HAS_ARM64 else -128


def pytest_sessionfinish() -> None:
    """Fail where the kernels were imported before this was said."""
    from engine.kernels import matmul
    from engine.quants.base import QUANT_TYPES

    assert QUANT_TYPES["Q8_0"].products == "bytes"
    assert matmul.sum_by_fours is matmul.sum_in_halves
