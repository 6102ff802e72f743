"""Prefill of blocks of 32 signed 8-bit weights, in the form that suits the processor.

VNNI needs unsigned weights: they are stored 128 too large, and 128 times the activations' sum is
subtracted. ARM64 takes signed weights. Other processors multiply int16.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels import matmul_32, matmul_wide
from engine.kernels.matmul_32 import scaled, tiles_32, with_offset
from engine.kernels.matmul_fours import sum_32
from engine.kernels.matmul_wide import TILES_WIDE, store_wide
from engine.kernels.tiles import keep_tile
from engine.machine.level import FOURS_OFFSET, SUMS_FOURS


@inner
def store_bytes(out, b, w):
    """Write weights 32 b to 32 b + 31 of a row as bytes, unsigned for VNNI."""
    vec.store_i8x32(out + 32 * b, vec.xor(w, vec.splat_i8x32(FOURS_OFFSET)))


@inner
def store_words(out, b, w):
    """Write weights 32 b to 32 b + 31 of a row as int16."""
    store_wide(out + 64 * b, w)


_SCALING = with_offset(128) if FOURS_OFFSET else (keep_tile, scaled)
store_signed = store_bytes if SUMS_FOURS else store_words
TILES_SIGNED = tiles_32(sum_32, _SCALING) if SUMS_FOURS else TILES_WIDE
ROW_D = matmul_32.ROW_D if SUMS_FOURS else matmul_wide.ROW_D
"""Byte offset of the scales in an unpacked row."""
