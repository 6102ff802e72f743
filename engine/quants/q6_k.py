"""Q6_K: 256 weights of 6 bits in sixteen sub-blocks of 16, each with a signed 8-bit scale.

    ql      128 bytes  lower 4 bits; of each half of the block (128 weights) 64 bytes: weights 0..63 of the half in the
                       low nibbles, 64..127 in the high nibbles
    qh      64 bytes   upper 2 bits; of each half 32 bytes: weights l, l+32, l+64, l+96 in bits 0-1, 2-3, 4-5, 6-7
    scales  16 bytes   int8
    d       f16        scale of the scales
                       128 + 64 + 16 + 2 = 210

A weight is ``d * scale * (q - 32)``. Layout: ggml-common.h, block_q6_K.
"""

from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.matmul import OFFSETS_OF_16, ROW_D, ROW_MINIMA, ROW_SCALES, finish_16, walk_k
from engine.kernels.matvec_k import few_k, four_groups, matvec_k
from engine.kernels.tiles import NARROW, matmul_tiles
from engine.machine.level import HAS_ARM64, HAS_F16C
from engine.simd import (
    add,
    and_,
    each_twice_i16x8,
    even_then_odd,
    f32_of_i32x8,
    fma,
    fmul,
    fourth_f32,
    half_lane0,
    half_lane1,
    half_lane2,
    half_lane3,
    half_lane4,
    half_lane5,
    half_lane6,
    half_lane7,
    high_half_i16,
    i32_of_i16x8,
    join_i32,
    keep_order,
    load_f16,
    load_f16x4,
    load_i8,
    load_i8x16,
    load_i8x32,
    load_i16x16,
    load_u8,
    low_half_i16,
    maddwd,
    mul,
    or_,
    shift_lanes_left,
    shift_left,
    shift_right,
    splat_f32x4,
    splat_f32x8,
    splat_i8x32,
    splat_i16x16,
    store_f32,
    store_i8x32,
    store_i16x16,
    sub,
    sums_of_16_u6,
    widen_i8x16,
)

BLOCK_BYTES = 210
QH, SCALES, D = 128, 192, 208


@inner
def half(block, n):
    """Weights of one half of a block as bytes from 0 to 63: four registers of 32."""
    low0, low1, qh = load_i8x32(block + 64 * n), load_i8x32(block + 64 * n + 32), load_i8x32(block + QH + 32 * n)
    nibble, two = splat_i8x32(15), splat_i8x32(48)
    return (
        or_(and_(low0, nibble), and_(shift_left(qh, 4), two)),
        or_(and_(low1, nibble), and_(shift_left(qh, 2), two)),
        or_(and_(shift_right(low0, 4), nibble), and_(qh, two)),
        or_(and_(shift_right(low1, 4), nibble), and_(shift_right(qh, 2), two)),
    )


@inner
def scale_of_four(block, d_y):
    """The block's scale times that of the activations: taken out of four halves, so that no register waits for it."""
    return fourth_f32(fmul(load_f16x4(block + D - 6), splat_f32x4(d_y)))


@inner
def scale_of_one(block, d_y):
    """The same where halves are widened by integer operations."""
    return splat_f32x8(load_f16(block + D) * d_y)


scale_of = scale_of_four if HAS_F16C else scale_of_one


@inner
def dot(block, y, d_y, sums, acc, acc_min):
    """Add one block's products with 256 activations."""
    scales = load_i8x16(block + SCALES)
    offset = shift_lanes_left(maddwd(widen_i8x16(scales), load_i16x16(sums)), 5)
    s = widen_i8x16(even_then_odd(scales))
    low = four_groups(half(block, 0), y, half_lane0(s), half_lane1(s), half_lane2(s), half_lane3(s))
    keep_order()
    high = four_groups(half(block, 1), y + 128, half_lane4(s), half_lane5(s), half_lane6(s), half_lane7(s))
    total = sub(add(low, high), offset)
    return fma(scale_of(block, d_y), f32_of_i32x8(total), acc), acc_min


@inner
def half_groups(block, y, n):
    """Sums of the eight sub-blocks of one half."""
    w0, w1, w2, w3 = half(block, n)
    low = sums_of_16_u6(w0, w1, load_i8x32(y), load_i8x32(y + 32))
    return join_i32(low, sums_of_16_u6(w2, w3, load_i8x32(y + 64), load_i8x32(y + 96)))


@inner
def dot_by_groups(block, y, d_y, sums, acc, acc_min):
    """``dot`` with a lane for each sub-block of one half."""
    s = widen_i8x16(load_i8x16(block + SCALES))
    offset = shift_lanes_left(maddwd(s, load_i16x16(sums)), 5)
    low = mul(i32_of_i16x8(low_half_i16(s)), half_groups(block, y, 0))
    high = mul(i32_of_i16x8(high_half_i16(s)), half_groups(block, y + 128, 1))
    return fma(scale_of(block, d_y), f32_of_i32x8(sub(add(low, high), offset)), acc), acc_min


dot_of_one = dot_by_groups if HAS_ARM64 else dot


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile; the offset of 32 becomes minima of -32 scales."""
    for n in range(2):
        w0, w1, w2, w3 = half(block, n)
        store_i8x32(out + 128 * n, w0)
        store_i8x32(out + 128 * n + 32, w1)
        store_i8x32(out + 128 * n + 64, w2)
        store_i8x32(out + 128 * n + 96, w3)
    s = widen_i8x16(load_i8x16(block + SCALES))
    store_i16x16(out + ROW_SCALES, each_twice_i16x8(low_half_i16(s)))
    store_i16x16(out + ROW_SCALES + 32, each_twice_i16x8(high_half_i16(s)))
    store_i16x16(out + ROW_MINIMA, sub(splat_i16x16(0), shift_lanes_left(s, 5)))
    store_f32(out + ROW_D, load_f16(block + D))


walk = walk_k(8, 16, OFFSETS_OF_16)


@inner
def dequantize(block, out):
    """Write the 256 weights of a block as f32."""
    d = load_f16(block + D)
    for k in range(256):
        n, j, position = k >> 7, (k >> 5) & 3, k & 31
        low = load_u8(block + 64 * n + 32 * (j & 1) + position) >> (4 * (j >> 1))
        high = load_u8(block + QH + 32 * n + position) >> (2 * j)
        q = ((low & 15) | ((high & 3) << 4)) - 32
        store_f32(out + 4 * k, d * load_i8(block + SCALES + (k >> 4)) * q)


@kernel
def embed(op, thread, n_threads):
    """Rows by token id."""
    embed_rows(dequantize, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matvec(op, thread, n_threads):
    """Rows times one column."""
    matvec_k(dot_of_one, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def few(op, thread, n_threads):
    """Rows times a few columns."""
    few_k(dot_of_one, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matmul(op, thread, n_threads):
    """Rows times the columns of a block."""
    matmul_tiles(unpack_row, finish_16, walk, NARROW, 256, BLOCK_BYTES, op, thread, n_threads)
