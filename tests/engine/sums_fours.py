"""A plugin that gives kernels the form for VNNI on a processor without it: slow there, and as right."""

from engine.simd import level

level.SUMS_FOURS = True


def pytest_sessionfinish() -> None:
    """Fail where the kernels were imported before this was said."""
    from engine.kernels.matmul_signed import PRODUCTS

    assert PRODUCTS == "bytes"
