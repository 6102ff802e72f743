"""Q4_K: 256 weights of 4 bits in eight sub-blocks of 32, each with a 6-bit scale and a 6-bit minimum.

    d       f16        scale of the scales        2
    dmin    f16        scale of the minima        2
    scales  12 bytes   eight 6-bit scales, eight 6-bit minima
    qs      128 bytes  sub-blocks 2j and 2j+1 in the low and high nibbles of bytes 32j..32j+31
                       2 + 2 + 12 + 128 = 144

A weight is ``d * scale * q - dmin * minimum``. Layout: ggml-common.h, block_q4_K.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.embed import embed_rows
from engine.kernels.matmul import (
    MINIMA_OF_32,
    ROW_D,
    ROW_DMIN,
    ROW_MINIMA,
    ROW_SCALES,
    finish_32,
    walk_k,
)
from engine.kernels.matvec_k import few_k, matvec_in_twos_k, matvec_k, shared_few_k
from engine.kernels.scales_k import (
    add_groups,
    dots_of_two,
    fold_with_minima,
    prepare_scales,
    prepared_scale,
    scale_of,
    scale_words,
)
from engine.kernels.tiles import NARROW, matmul_tiles
from engine.machine.level import HAS_ARM64

BLOCK_BYTES = 144


@inner
def nibbles(block, j):
    """The j-th 32 weights of a block as bytes."""
    return vec.and_(vec.shift_right(vec.load_i8x32(block + 16 + 32 * (j >> 1)), 4 * (j & 1)), vec.splat_i8x32(15))


@inner
def pair(block, y, j, even_scale, odd_scale):
    """Integer contribution of sub-blocks 2j and 2j+1."""
    qs, mask = vec.load_i8x32(block + 16 + 32 * j), vec.splat_i8x32(15)
    even = vec.maddwd_folded(even_scale, vec.maddubs(vec.and_(qs, mask), vec.load_i8x32(y + 64 * j)))
    odd = vec.maddwd_folded(
        odd_scale, vec.maddubs(vec.and_(vec.shift_right(qs, 4), mask), vec.load_i8x32(y + 64 * j + 32))
    )
    return vec.add(even, odd)


@inner
def dot(block, y, d_y, sums, acc, acc_min):
    """Add one block's products with 256 activations."""
    s_low, s_high, m_low, m_high = scale_words(block)
    s, m = vec.widen_u8x16(vec.four_u32(s_low, s_high, s_low, s_high)), vec.widen_8_bytes(m_low, m_high)
    d = vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y))
    minima = vec.i32x8_of_i32x4(vec.maddwd_128(m, vec.load_i16x8(sums + 32)))
    acc_min = vec.fma(vec.second_f32(d), vec.f32_of_i32x8(minima), acc_min)
    total = vec.add(
        vec.add(
            pair(block, y, 0, vec.half_lane0(s), vec.half_lane1(s)),
            pair(block, y, 1, vec.half_lane2(s), vec.half_lane3(s)),
        ),
        vec.add(
            pair(block, y, 2, vec.half_lane4(s), vec.half_lane5(s)),
            pair(block, y, 3, vec.half_lane6(s), vec.half_lane7(s)),
        ),
    )
    return vec.fma(vec.first_f32(d), vec.f32_of_i32x8(total), acc), acc_min


@inner
def half_groups(block, y, n):
    """Sums of the four sub-blocks of one half."""
    q0, q1, mask = vec.load_i8x32(block + 16 + 64 * n), vec.load_i8x32(block + 48 + 64 * n), vec.splat_i8x32(15)
    return vec.sums_of_32_u4(
        vec.and_(q0, mask), vec.high_nibbles(q0), vec.and_(q1, mask), vec.high_nibbles(q1),
        vec.load_i8x32(y), vec.load_i8x32(y + 32), vec.load_i8x32(y + 64), vec.load_i8x32(y + 96),
    )  # fmt: skip


@inner
def dot_by_groups(block, y, d_y, sums, acc, acc_min):
    """``dot`` with a lane for each sub-block."""
    groups = vec.join_i32(half_groups(block, y, 0), half_groups(block, y + 128, 1))
    return add_groups(block, groups, d_y, sums, acc, acc_min)


@inner
def total(block, y, room):
    """Integer contribution of one of two blocks whose scales are at ``room``."""
    return vec.add(
        vec.add(
            pair(block, y, 0, scale_of(room, 0), scale_of(room, 1)),
            pair(block, y, 1, scale_of(room, 2), scale_of(room, 3)),
        ),
        vec.add(
            pair(block, y, 2, scale_of(room, 4), scale_of(room, 5)),
            pair(block, y, 3, scale_of(room, 6), scale_of(room, 7)),
        ),
    )


@inner
def dots(block, other, y, d_y, sums, acc, other_acc, acc_min, room):
    """Add the products of two rows' blocks with 256 activations."""
    return dots_of_two(total, block, other, y, d_y, sums, acc, other_acc, acc_min, room)


@inner
def shared_pair(block, room, j):
    """Sub-blocks 2j and 2j+1 for several columns."""
    qs, mask = vec.load_i8x32(block + 16 + 32 * j), vec.splat_i8x32(15)
    return (
        vec.and_(qs, mask),
        vec.and_(vec.shift_right(qs, 4), mask),
        prepared_scale(room, 2 * j),
        prepared_scale(room, 2 * j + 1),
    )


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    for j in range(8):
        vec.store_i8x32(out + 32 * j, nibbles(block, j))
    s_low, s_high, m_low, m_high = scale_words(block)
    vec.store_i16x16(out + ROW_SCALES, vec.each_twice_i16x8(vec.widen_8_bytes(s_low, s_high)))
    vec.store_i16x8(out + ROW_MINIMA, vec.widen_8_bytes(m_low, m_high))
    vec.store_f32(out + ROW_D, vec.load_f16(block))
    vec.store_f32(out + ROW_DMIN, -vec.load_f16(block + 2))


walk = walk_k(32, 32, MINIMA_OF_32)


@inner
def dequantize(block, out):
    """Write the 256 weights of a block as f32."""
    s_low, s_high, m_low, m_high = scale_words(block)
    d, dmin = vec.load_f16(block), vec.load_f16(block + 2)
    for j in range(8):
        s, m = (s_low, m_low) if j < 4 else (s_high, m_high)
        scale, minimum = d * ((s >> (8 * (j & 3))) & 255), dmin * ((m >> (8 * (j & 3))) & 255)
        for k in range(32):
            q = (vec.load_u8(block + 16 + 32 * (j >> 1) + k) >> (4 * (j & 1))) & 15
            vec.store_f32(out + 4 * (32 * j + k), scale * q - minimum)


@kernel
def embed(op, thread, n_threads):
    """Rows by token id."""
    embed_rows(dequantize, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matvec(op, thread, n_threads):
    """Rows times one column."""
    if HAS_ARM64:
        matvec_k(dot_by_groups, 256, BLOCK_BYTES, op, thread, n_threads)
    else:
        matvec_in_twos_k(dots, dot, 256, BLOCK_BYTES, op, thread, n_threads)


@kernel
def few(op, thread, n_threads):
    """Rows times a few columns."""
    if HAS_ARM64:
        few_k(dot_by_groups, 256, BLOCK_BYTES, op, thread, n_threads)
    else:
        shared_few_k(prepare_scales, shared_pair, fold_with_minima, dot, BLOCK_BYTES, op, thread, n_threads)


@kernel
def matmul(op, thread, n_threads):
    """Rows times the columns of a block."""
    matmul_tiles(unpack_row, finish_32, walk, NARROW, 256, BLOCK_BYTES, op, thread, n_threads)
