"""Q5_K: 256 weights of 5 bits in eight sub-blocks of 32, each with a 6-bit scale and a 6-bit minimum.

    d       f16        scale of the scales        2
    dmin    f16        scale of the minima        2
    scales  12 bytes   eight 6-bit scales, eight 6-bit minima, packed as in Q4_K
    qh      32 bytes   upper bit of weight 32j+l in bit j of byte l
    qs      128 bytes  lower 4 bits: sub-blocks 2j and 2j+1 in the low and high nibbles of bytes 32j..32j+31
                       2 + 2 + 12 + 32 + 128 = 176

A weight is ``d * scale * q - dmin * minimum``. Layout: ggml-common.h, block_q5_K.
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

BLOCK_BYTES = 176
QH, QS = 16, 48


@inner
def pair(block, y, j, even_bits, odd_bits, even_scale, odd_scale):
    """Integer contribution of sub-blocks 2j and 2j+1; their upper bits are at bit 4 of the two bit registers."""
    qs, nibble, high = vec.load_i8x32(block + QS + 32 * j), vec.splat_i8x32(15), vec.splat_i8x32(16)
    even = vec.or_(vec.and_(qs, nibble), vec.and_(even_bits, high))
    odd = vec.or_(vec.and_(vec.shift_right(qs, 4), nibble), vec.and_(odd_bits, high))
    return vec.add(
        vec.maddwd_folded(even_scale, vec.maddubs(even, vec.load_i8x32(y + 64 * j))),
        vec.maddwd_folded(odd_scale, vec.maddubs(odd, vec.load_i8x32(y + 64 * j + 32))),
    )


@inner
def dot(block, y, d_y, sums, acc, acc_min):
    """Add one block's products with 256 activations."""
    s_low, s_high, m_low, m_high = scale_words(block)
    s, m = vec.widen_u8x16(vec.four_u32(s_low, s_high, s_low, s_high)), vec.widen_8_bytes(m_low, m_high)
    d = vec.fmul(vec.load_f16x4(block), vec.splat_f32x4(d_y))
    minima = vec.i32x8_of_i32x4(vec.maddwd_128(m, vec.load_i16x8(sums + 32)))
    acc_min = vec.fma(vec.second_f32(d), vec.f32_of_i32x8(minima), acc_min)
    qh = vec.load_i8x32(block + QH)
    low = vec.add(
        pair(block, y, 0, vec.shift_left(qh, 4), vec.shift_left(qh, 3), vec.half_lane0(s), vec.half_lane1(s)),
        pair(block, y, 1, vec.shift_left(qh, 2), vec.shift_left(qh, 1), vec.half_lane2(s), vec.half_lane3(s)),
    )
    high = vec.add(
        pair(block, y, 2, qh, vec.shift_right(qh, 1), vec.half_lane4(s), vec.half_lane5(s)),
        pair(block, y, 3, vec.shift_right(qh, 2), vec.shift_right(qh, 3), vec.half_lane6(s), vec.half_lane7(s)),
    )
    return vec.fma(vec.first_f32(d), vec.f32_of_i32x8(vec.add(low, high)), acc), acc_min


@inner
def half_groups(block, bits, y, n):
    """Sums of the four sub-blocks of one half; their upper bits are the lowest four of each byte."""
    q0, q1, nibble = vec.load_i8x32(block + QS + 64 * n), vec.load_i8x32(block + QS + 64 * n + 32), vec.splat_i8x32(15)
    high = vec.splat_i8x32(16)
    return vec.sums_of_32_u5(
        vec.or_(vec.and_(q0, nibble), vec.and_(vec.shift_left(bits, 4), high)),
        vec.or_(vec.high_nibbles(q0), vec.and_(vec.shift_left(bits, 3), high)),
        vec.or_(vec.and_(q1, nibble), vec.and_(vec.shift_left(bits, 2), high)),
        vec.or_(vec.high_nibbles(q1), vec.and_(vec.shift_left(bits, 1), high)),
        vec.load_i8x32(y), vec.load_i8x32(y + 32), vec.load_i8x32(y + 64), vec.load_i8x32(y + 96),
    )  # fmt: skip


@inner
def dot_by_groups(block, y, d_y, sums, acc, acc_min):
    """``dot`` with a lane for each sub-block."""
    bits = vec.load_i8x32(block + QH)
    groups = vec.join_i32(half_groups(block, bits, y, 0), half_groups(block, vec.high_nibbles(bits), y + 128, 1))
    return add_groups(block, groups, d_y, sums, acc, acc_min)


@inner
def total(block, y, room):
    """Integer contribution of one of two blocks whose scales are at ``room``."""
    qh = vec.load_i8x32(block + QH)
    low = vec.add(
        pair(block, y, 0, vec.shift_left(qh, 4), vec.shift_left(qh, 3), scale_of(room, 0), scale_of(room, 1)),
        pair(block, y, 1, vec.shift_left(qh, 2), vec.shift_left(qh, 1), scale_of(room, 2), scale_of(room, 3)),
    )
    high = vec.add(
        pair(block, y, 2, qh, vec.shift_right(qh, 1), scale_of(room, 4), scale_of(room, 5)),
        pair(block, y, 3, vec.shift_right(qh, 2), vec.shift_right(qh, 3), scale_of(room, 6), scale_of(room, 7)),
    )
    return vec.add(low, high)


@inner
def dots(block, other, y, d_y, sums, acc, other_acc, acc_min, room):
    """Add the products of two rows' blocks with 256 activations."""
    return dots_of_two(total, block, other, y, d_y, sums, acc, other_acc, acc_min, room)


@inner
def shared_pair(block, room, j):
    """Sub-blocks 2j and 2j+1 for several columns."""
    qs, nibble, one = vec.load_i8x32(block + QS + 32 * j), vec.splat_i8x32(15), vec.splat_i8x32(1)
    bits = vec.shift_right(vec.load_i8x32(block + QH), 2 * j)
    even = vec.or_(vec.and_(qs, nibble), vec.shift_left(vec.and_(bits, one), 4))
    odd = vec.or_(vec.and_(vec.shift_right(qs, 4), nibble), vec.shift_left(vec.and_(vec.shift_right(bits, 1), one), 4))
    return even, odd, prepared_scale(room, 2 * j), prepared_scale(room, 2 * j + 1)


@inner
def unpack_row(block, out, n_live):
    """Write one row's part of a tile."""
    qh, one, nibble = vec.load_i8x32(block + QH), vec.splat_i8x32(1), vec.splat_i8x32(15)
    for j in range(vec.rolled(8)):
        low = vec.and_(vec.shift_right(vec.load_i8x32(block + QS + 32 * (j >> 1)), 4 * (j & 1)), nibble)
        vec.store_i8x32(out + 32 * j, vec.or_(low, vec.shift_left(vec.and_(vec.shift_right(qh, j), one), 4)))
    s_low, s_high, m_low, m_high = scale_words(block)
    vec.store_i16x16(out + ROW_SCALES, vec.each_twice_i16x8(vec.widen_8_bytes(s_low, s_high)))
    vec.store_i16x8(out + ROW_MINIMA, vec.widen_8_bytes(m_low, m_high))
    vec.store_f32(out + ROW_D, vec.load_f16(block))
    vec.store_f32(out + ROW_DMIN, -vec.load_f16(block + 2))


walk = walk_k(16, 32, MINIMA_OF_32)


@inner
def dequantize(block, out):
    """Write the 256 weights of a block as f32."""
    s_low, s_high, m_low, m_high = scale_words(block)
    d, dmin = vec.load_f16(block), vec.load_f16(block + 2)
    for j in range(8):
        s, m = (s_low, m_low) if j < 4 else (s_high, m_high)
        scale, minimum = d * ((s >> (8 * (j & 3))) & 255), dmin * ((m >> (8 * (j & 3))) & 255)
        for k in range(32):
            low = (vec.load_u8(block + QS + 32 * (j >> 1) + k) >> (4 * (j & 1))) & 15
            high = (vec.load_u8(block + QH + k) >> j) & 1
            vec.store_f32(out + 4 * (32 * j + k), scale * (low + 16 * high) - minimum)


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
