"""A plugin that gives kernels the form of another processor, named by ``FORM``: slow on this one,
and as right."""

import os

from engine.machine import level
from tests.engine import compiles_all as compiles_all

FORM = os.environ["FORM"]
if FORM == "wide attention":
    level.HAS_VNNI_512 = True
elif FORM == "two rows":
    level.TWO_ROWS = True
else:
    level.SUMS_FOURS = True
    level.SIXTEEN_ROWS = FORM != "vnni"
    level.TWO_ROWS = FORM == "avx512"
    level.SIXTEEN_TOKENS = FORM == "amx"
    level.FOURS_OFFSET = 0 if level.HAS_ARM64 or level.SIXTEEN_TOKENS else -128
    level.HAS_AMX = False


def pytest_sessionfinish() -> None:
    """Fail if the kernels were imported before this plugin."""
    from engine.kernels import matmul, matmul_sixteens, scales_k, strips, tiles
    from engine.quants.base import QUANT_TYPES

    if FORM == "wide attention":
        assert strips.zero_strip is strips.zero_strip_of_two
    elif FORM == "two rows":
        assert scales_k.TWO_ROWS
    else:
        assert (16 if FORM == "amx" else 4) == tiles.TILE_TOKENS
        assert QUANT_TYPES["Q8_0"].product_width == "bytes"
        assert matmul.sum_by_fours is (matmul.sum_in_halves if FORM == "vnni" else matmul.sum_512)
        assert matmul.multiply_digits is matmul_sixteens.multiply_digits_plain
