"""A plugin that gives kernels the form for VNNI with 512 bits on any processor: slow there, and as right."""

from engine.simd import level

level.SUMS_FOURS = True
level.SIXTEEN_ROWS = True


def pytest_sessionfinish() -> None:
    """Fail where the kernels were imported before this was said."""
    from engine.kernels import matmul

    assert matmul.sum_by_fours is matmul.sum_whole
