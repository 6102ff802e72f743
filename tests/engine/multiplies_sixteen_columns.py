"""A plugin that gives kernels the form for AMX on any processor, product by product: very slow there, and as right."""

from engine.machine import level
from tests.engine import compiles_all as compiles_all

level.SUMS_FOURS = level.SIXTEEN_ROWS = level.SIXTEEN_COLUMNS = True
level.FOURS_OFFSET = 0
level.HAS_AMX = False


def pytest_sessionfinish() -> None:
    """Fail where the kernels were imported before this was said."""
    from engine.kernels import matmul, matmul_sixteens

    assert matmul.multiply_digits is matmul_sixteens.multiply_digits_plain
    assert matmul_sixteens.start_32 is matmul_sixteens.start_32_plain
