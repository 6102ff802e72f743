"""Rows of 256-weight blocks times one column of activations in q8_k form, or a few: decode of the K types."""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.matvec import ask_ahead, claim, finish, finish_four
from engine.kernels.records import MATMUL as F
from engine.kernels.records import STEP
from engine.kernels.share import CLAIM_BYTES, claim_rows


@inner
def four_groups(weights, y, s0, s1, s2, s3):
    """Integer contribution of 128 weights with eight scales; a scale register holds two, one in each half.

    Args:
        weights: four i8x32, unsigned, at most 7 bits.
    """
    w0, w1, w2, w3 = weights
    return vec.add(
        vec.add(
            vec.maddwd(s0, vec.maddubs(w0, vec.load_i8x32(y))), vec.maddwd(s1, vec.maddubs(w1, vec.load_i8x32(y + 32)))
        ),
        vec.add(
            vec.maddwd(s2, vec.maddubs(w2, vec.load_i8x32(y + 64))),
            vec.maddwd(s3, vec.maddubs(w3, vec.load_i8x32(y + 96))),
        ),
    )


@inner
def columns_k(op, y_bytes, c):
    """Where column c of q8_k activations is: (q, d, sums)."""
    group = c * (vec.load_i64(op + F.n_cols) // 256)
    return (
        vec.load_i64(op + F.q) + y_bytes * group,
        vec.load_i64(op + F.d) + 4 * group,
        vec.load_i64(op + F.sums) + 48 * group,
    )


@inner
def one_column_k(dot, y_bytes, block_bytes, op, c, row):
    """One row of 256-weight blocks with one column.

    Args:
        dot: (block, y, d_y, sums, acc, acc_min) -> (acc, acc_min), f32x8; the result is their difference.
        y_bytes: of 256 activations in the order that ``dot`` wants.
        block_bytes: type_size of the quantised type.
    """
    q, d, sums = columns_k(op, y_bytes, c)
    acc, acc_min = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    block = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
    ahead = vec.load_i64(op + F.ahead)
    for i in range(vec.load_i64(op + F.n_cols) // 256):
        ask_ahead(block, ahead, block_bytes)
        acc, acc_min = dot(block, q + y_bytes * i, vec.load_f32(d + 4 * i), sums + 48 * i, acc, acc_min)
        block += block_bytes
    finish(op, c, row, vec.sum_f32x8(vec.fsub(acc, acc_min)))


@inner
def two_columns_k(dot, y_bytes, block_bytes, op, c, row):
    """The same with two."""
    q, d, sums = columns_k(op, y_bytes, c)
    r, e, tums = columns_k(op, y_bytes, c + 1)
    a, b, a_min, b_min = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    block = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
    ahead = vec.load_i64(op + F.ahead)
    for i in range(vec.load_i64(op + F.n_cols) // 256):
        ask_ahead(block, ahead, block_bytes)
        a, a_min = dot(block, q + y_bytes * i, vec.load_f32(d + 4 * i), sums + 48 * i, a, a_min)
        b, b_min = dot(block, r + y_bytes * i, vec.load_f32(e + 4 * i), tums + 48 * i, b, b_min)
        block += block_bytes
    finish(op, c, row, vec.sum_f32x8(vec.fsub(a, a_min)))
    finish(op, c + 1, row, vec.sum_f32x8(vec.fsub(b, b_min)))


@inner
def four_columns_k(dot, y_bytes, block_bytes, op, c, row):
    """The same with four."""
    (q0, d0, s0), (q1, d1, s1) = columns_k(op, y_bytes, c), columns_k(op, y_bytes, c + 1)
    (q2, d2, s2), (q3, d3, s3) = columns_k(op, y_bytes, c + 2), columns_k(op, y_bytes, c + 3)
    a0, a1, a2, a3 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    m0, m1, m2, m3 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    block = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
    ahead = vec.load_i64(op + F.ahead)
    for i in range(vec.load_i64(op + F.n_cols) // 256):
        ask_ahead(block, ahead, block_bytes)
        a0, m0 = dot(block, q0 + y_bytes * i, vec.load_f32(d0 + 4 * i), s0 + 48 * i, a0, m0)
        a1, m1 = dot(block, q1 + y_bytes * i, vec.load_f32(d1 + 4 * i), s1 + 48 * i, a1, m1)
        a2, m2 = dot(block, q2 + y_bytes * i, vec.load_f32(d2 + 4 * i), s2 + 48 * i, a2, m2)
        a3, m3 = dot(block, q3 + y_bytes * i, vec.load_f32(d3 + 4 * i), s3 + 48 * i, a3, m3)
        block += block_bytes
    v0, v1 = vec.sum_f32x8(vec.fsub(a0, m0)), vec.sum_f32x8(vec.fsub(a1, m1))
    finish_four(op, c, row, v0, v1, vec.sum_f32x8(vec.fsub(a2, m2)), vec.sum_f32x8(vec.fsub(a3, m3)))


@inner
def rows_apart_k(dot, y_bytes, block_bytes, op, row, apart):
    """Four rows that are ``apart`` from each other with one column, a block of each in turn."""
    q, d, sums = columns_k(op, y_bytes, 0)
    a0, a1, a2, a3 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    m0, m1, m2, m3 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    block, far = (
        vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes),
        apart * vec.load_i64(op + F.row_bytes),
    )
    ahead = vec.load_i64(op + F.ahead)
    for i in range(vec.load_i64(op + F.n_cols) // 256):
        y, d_y, sums_y = q + y_bytes * i, vec.load_f32(d + 4 * i), sums + 48 * i
        ask_ahead(block, ahead, block_bytes)
        a0, m0 = dot(block, y, d_y, sums_y, a0, m0)
        ask_ahead(block + far, ahead, block_bytes)
        a1, m1 = dot(block + far, y, d_y, sums_y, a1, m1)
        ask_ahead(block + 2 * far, ahead, block_bytes)
        a2, m2 = dot(block + 2 * far, y, d_y, sums_y, a2, m2)
        ask_ahead(block + 3 * far, ahead, block_bytes)
        a3, m3 = dot(block + 3 * far, y, d_y, sums_y, a3, m3)
        block += block_bytes
    finish(op, 0, row, vec.sum_f32x8(vec.fsub(a0, m0)))
    finish(op, 0, row + apart, vec.sum_f32x8(vec.fsub(a1, m1)))
    finish(op, 0, row + 2 * apart, vec.sum_f32x8(vec.fsub(a2, m2)))
    finish(op, 0, row + 3 * apart, vec.sum_f32x8(vec.fsub(a3, m3)))


@inner
def matvec_k(dot, y_bytes, block_bytes, op, thread, n_threads):
    """All rows with one column."""
    turn = 0
    while turn < n_threads:
        apart, first, last, turn = claim(op, thread, n_threads, turn)
        for row in range(first, first + apart):
            rows_apart_k(dot, y_bytes, block_bytes, op, row, apart)
        for row in range(first + 4 * apart, last):
            one_column_k(dot, y_bytes, block_bytes, op, 0, row)


@inner
def two_rows_k(dots, y_bytes, block_bytes, op, row, room):
    """Two neighbouring rows with one column: the scales before their weights are unpacked in one register.

    Memory is asked for both rows in the order of addresses: two streams of a row each were half as fast.

    Args:
        dots: (block, other, y, d_y, sums, acc, other_acc, acc_min, room) -> (acc, other_acc, acc_min); acc_min holds
            the first row's minima in its lower half, the other's in its upper half.
        room: address of 64 bytes of this thread.
    """
    q, d, sums = columns_k(op, y_bytes, 0)
    a, b, low = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    block = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
    other = vec.load_i64(op + F.weights) + (row + 1) * vec.load_i64(op + F.row_bytes)
    ahead, asked = vec.load_i64(op + F.ahead), other
    for i in range(vec.load_i64(op + F.n_cols) // 256):
        ask_ahead(asked, ahead, 2 * block_bytes)
        asked += 2 * block_bytes
        a, b, low = dots(block, other, q + y_bytes * i, vec.load_f32(d + 4 * i), sums + 48 * i, a, b, low, room)
        block, other = block + block_bytes, other + block_bytes
    finish(op, 0, row, vec.sum_f32x8(vec.fsub(a, vec.low_half_f32(low))))
    finish(op, 0, row + 1, vec.sum_f32x8(vec.fsub(b, vec.high_half_f32(low))))


@inner
def two_pairs_apart_k(dots, y_bytes, block_bytes, op, row, apart, room):
    """Four rows that are ``apart`` from each other with one column, blocks of two and two in turn."""
    q, d, sums = columns_k(op, y_bytes, 0)
    a0, a1, a2, a3 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    low01, low23 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    block, far = (
        vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes),
        apart * vec.load_i64(op + F.row_bytes),
    )
    ahead = vec.load_i64(op + F.ahead)
    for i in range(vec.load_i64(op + F.n_cols) // 256):
        y, d_y, sums_y = q + y_bytes * i, vec.load_f32(d + 4 * i), sums + 48 * i
        ask_ahead(block, ahead, block_bytes)
        ask_ahead(block + far, ahead, block_bytes)
        a0, a1, low01 = dots(block, block + far, y, d_y, sums_y, a0, a1, low01, room)
        ask_ahead(block + 2 * far, ahead, block_bytes)
        ask_ahead(block + 3 * far, ahead, block_bytes)
        a2, a3, low23 = dots(block + 2 * far, block + 3 * far, y, d_y, sums_y, a2, a3, low23, room + 64)
        block += block_bytes
    finish(op, 0, row, vec.sum_f32x8(vec.fsub(a0, vec.low_half_f32(low01))))
    finish(op, 0, row + apart, vec.sum_f32x8(vec.fsub(a1, vec.high_half_f32(low01))))
    finish(op, 0, row + 2 * apart, vec.sum_f32x8(vec.fsub(a2, vec.low_half_f32(low23))))
    finish(op, 0, row + 3 * apart, vec.sum_f32x8(vec.fsub(a3, vec.high_half_f32(low23))))


@inner
def matvec_in_twos_k(dots, dot, y_bytes, block_bytes, op, thread, n_threads):
    """All rows with one column, two or four at a time."""
    room = vec.load_i64(op + F.scratch) + thread * vec.load_i64(op + F.scratch_bytes)
    turn = 0
    while turn < n_threads:
        apart, first, last, turn = claim(op, thread, n_threads, turn)
        for row in range(first, first + apart):
            two_pairs_apart_k(dots, y_bytes, block_bytes, op, row, apart, room)
        first += 4 * apart
        for row in range(first, last - 1, 2):
            two_rows_k(dots, y_bytes, block_bytes, op, row, room)
        if (last - first) & 1:
            one_column_k(dot, y_bytes, block_bytes, op, 0, last - 1)


@inner
def few_k(dot, y_bytes, block_bytes, op, thread, n_threads):
    """All rows with the few columns of the step, a row with all of them before the next row."""
    n_tokens = vec.load_i64(vec.load_i64(op + F.step) + STEP.n_tokens)
    turn = 0
    while turn < n_threads:
        first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
        for row in range(first, last):
            for c in range(0, n_tokens, 4):
                if n_tokens - c >= 3:
                    four_columns_k(dot, y_bytes, block_bytes, op, c, row)
                elif n_tokens - c == 2:
                    two_columns_k(dot, y_bytes, block_bytes, op, c, row)
                else:
                    one_column_k(dot, y_bytes, block_bytes, op, c, row)


@inner
def add_pair(pair, y, total):
    """Integer contribution of 64 weights with their two scale registers, added to a column's; lanes as in ``dot``."""
    even, odd, even_scale, odd_scale = pair
    both = vec.add(
        vec.maddwd_folded(even_scale, vec.maddubs(even, vec.load_i8x32(y))),
        vec.maddwd_folded(odd_scale, vec.maddubs(odd, vec.load_i8x32(y + 32))),
    )
    return vec.add(total, both)


@inner
def shared_columns_k(prepare, pair, fold, block_bytes, op, c, row, room):
    """One row with four columns or three: 64 weights and their scales are unpacked once and meet all columns.

    Column by column, as ``four_columns_k`` does it, a whole block waits in registers, of which there are too few; and a
    loop without turns would be scheduled like that again. Integers are the same in any order, in lanes of their own;
    floats are added as in ``dot``.
    """
    (q0, d0, s0), (q1, d1, s1) = columns_k(op, 256, c), columns_k(op, 256, c + 1)
    (q2, d2, s2), (q3, d3, s3) = columns_k(op, 256, c + 2), columns_k(op, 256, c + 3)
    a0, a1, a2, a3 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    m0, m1, m2, m3 = vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0), vec.splat_f32x8(0.0)
    block = vec.load_i64(op + F.weights) + row * vec.load_i64(op + F.row_bytes)
    ahead = vec.load_i64(op + F.ahead)
    for i in range(vec.load_i64(op + F.n_cols) // 256):
        ask_ahead(block, ahead, block_bytes)
        prepare(block, room)
        vec.written()
        t0, t1, t2, t3 = vec.splat_i32x8(0), vec.splat_i32x8(0), vec.splat_i32x8(0), vec.splat_i32x8(0)
        for j in range(vec.rolled(4)):
            these, at = pair(block, room, j), 256 * i + 64 * j
            t0, t1 = add_pair(these, q0 + at, t0), add_pair(these, q1 + at, t1)
            t2, t3 = add_pair(these, q2 + at, t2), add_pair(these, q3 + at, t3)
        a0, m0 = fold(block, room, t0, vec.load_f32(d0 + 4 * i), s0 + 48 * i, a0, m0)
        a1, m1 = fold(block, room, t1, vec.load_f32(d1 + 4 * i), s1 + 48 * i, a1, m1)
        a2, m2 = fold(block, room, t2, vec.load_f32(d2 + 4 * i), s2 + 48 * i, a2, m2)
        a3, m3 = fold(block, room, t3, vec.load_f32(d3 + 4 * i), s3 + 48 * i, a3, m3)
        block += block_bytes
    v0, v1 = vec.sum_f32x8(vec.fsub(a0, m0)), vec.sum_f32x8(vec.fsub(a1, m1))
    finish_four(op, c, row, v0, v1, vec.sum_f32x8(vec.fsub(a2, m2)), vec.sum_f32x8(vec.fsub(a3, m3)))


@inner
def shared_few_k(prepare, pair, fold, dot, block_bytes, op, thread, n_threads):
    """All rows with the few columns of the step, of which three and four share what they unpack.

    Args:
        prepare: (block, room) writes a block's scales and minima, at most 64 bytes.
        pair: (block, room, j) -> the j-th 64 weights in two registers of bytes, and a register of scales for each.
        fold: (block, room, total, d_y, sums, acc, acc_min) -> (acc, acc_min), as ``dot`` does with its own total.
    """
    n_tokens = vec.load_i64(vec.load_i64(op + F.step) + STEP.n_tokens)
    room = vec.load_i64(op + F.scratch) + thread * vec.load_i64(op + F.scratch_bytes)
    turn = 0
    while turn < n_threads:
        first, last, turn = claim_rows(op, 8, CLAIM_BYTES, thread, n_threads, turn)
        for row in range(first, last):
            for c in range(0, n_tokens, 4):
                if n_tokens - c >= 3:
                    shared_columns_k(prepare, pair, fold, block_bytes, op, c, row, room)
                elif n_tokens - c == 2:
                    two_columns_k(dot, 256, block_bytes, op, c, row)
                else:
                    one_column_k(dot, 256, block_bytes, op, c, row)
