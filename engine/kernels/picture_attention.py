"""Attention in which every row sees all rows, by products of bfloat16: encoders of pictures.

out = softmax(scale * q @ k) @ v, with queries, keys, values and weights rounded to bfloat16, and
all sums in f32.

Tile registers multiply sixteen lines by sixteen columns. Lines are keys and columns are queries, so
the scores of a key are one register, with a lane for each query, and maxima and sums need no sums
over lanes. ``BLOCK`` queries pass the keys together, ``CHUNK`` keys at a time, and each chunk's
result is added to that of those before.

Keys are stored as ``[head][key][width]``, values as ``[head][key / 32][width][32]``; the width is
that of a head, rounded up to a multiple of 32, and the number of keys is, too.
"""

from typing import NamedTuple

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.picture_sizes import BLOCK, CHUNK, LINES, STEP
from engine.kernels.records import CACHE as F
from engine.kernels.share import n_tokens_of, share
from engine.machine.level import HAS_AMX
from engine.simd import bf16_tiles

MASKED = -3e38
LOWEST_POWER = -126.0
LOG2_E = 1.44269504088896341
LN2 = 0.69314718055994531
TILE = 1024
"""Bytes of a tile: sixteen lines of 64 bytes."""
LINE_BYTES = 64
"""Bytes of a line, and of the scores of a key."""


class RowsShape(NamedTuple):
    """Sizes of a run.

    Attributes:
        n: Number of rows.
        n_stored: Number of rows, rounded up to a multiple of 32.
        head_dim: Width of a head.
        width: Width of a head, rounded up to a multiple of 32.
    """

    n: int
    n_stored: int
    head_dim: int
    width: int


class BlockScratch(NamedTuple):
    """Addresses of a thread's scratch: parts of a block of queries, each for sixteen queries, and
    then for the next sixteen."""

    queries: int
    lines: int
    scores: int
    weights: int
    result: int
    tops: int
    totals: int


@inner
def shape_of(op):
    """Return the sizes of a run."""
    n = n_tokens_of(op)
    head_dim = vec.load_i64(op + F.head_dim)
    return RowsShape(
        n, (n + STEP - 1) // STEP * STEP, head_dim, (head_dim + STEP - 1) // STEP * STEP
    )


@inner
def scratch_of(op, width, thread):
    """Divide the scratch of a thread."""
    queries = vec.load_i64(op + F.scratch) + thread * vec.load_i64(op + F.scratch_bytes)
    lines = queries + 2 * BLOCK * width
    scores = lines + 2 * BLOCK * width
    weights = scores + 4 * BLOCK * CHUNK
    result = weights + 2 * BLOCK * CHUNK
    tops = result + 4 * BLOCK * width
    return BlockScratch(queries, lines, scores, weights, result, tops, tops + 4 * BLOCK)


@inner
def store_bf16_row(source, factor, n, width, out):
    """Write a row of n f32 times a factor as bfloat16, and zeros up to the width."""
    zero = vec.splat_f32x8(0.0)
    by = vec.splat_f32x8(factor)
    for i in range(0, n, 8):
        bf16_tiles.store_bf16x8(out + 2 * i, vec.fmul(vec.load_f32x8(source + 4 * i), by))
    for i in range(n, width, 8):
        bf16_tiles.store_bf16x8(out + 2 * i, zero)


@inner
def store_values(shape, source, stride, n_live, pairs, out):
    """Write the values of 32 rows: ``[width][32]`` bfloat16.

    Args:
        source, stride: Address of the first row, and bytes to the next.
        n_live: Rows that there are; others are zeros.
        pairs: Scratch of 64 * width bytes.
    """
    zero = vec.splat_f32x8(0.0)
    for i in range(0, shape.width, 8):
        for row in range(0, STEP, 2):
            even = zero
            odd = zero
            address = source + row * stride + 4 * i
            if i < shape.head_dim and row < n_live:
                even = vec.load_f32x8(address)
            if i < shape.head_dim and row + 1 < n_live:
                odd = vec.load_f32x8(address + stride)
            bf16_tiles.store_bf16_pairs(pairs + 2 * row * shape.width + 4 * i, even, odd)
    for row in range(0, STEP // 2, 8):
        for i in range(0, shape.width, 8):
            vec.transpose(
                out + LINE_BYTES * i + 4 * row,
                LINE_BYTES,
                pairs + 4 * row * shape.width + 4 * i,
                4 * shape.width,
            )


@kernel
def store_keys_and_values(op, thread, n_threads):
    """Write keys and values of all rows as ``attend_to_all`` reads them."""
    shape = shape_of(op)
    k, v, n_heads, n_slots = vec.load_words(op, (F.x, F.v, F.n_heads, F.n_slots))
    keys, values = vec.load_words(op, (F.k_cache, F.v_cache))
    scratch = scratch_of(op, shape.width, thread)
    stride = 4 * n_heads * shape.head_dim
    n_steps = shape.n_stored // STEP
    first, last = share(n_heads * n_steps, 1, thread, n_threads)
    for item in range(first, last):
        head = item // max(n_steps, 1)
        row = item % max(n_steps, 1) * STEP
        offset = row * stride + 4 * head * shape.head_dim
        place = 2 * shape.width * (head * n_slots + row)
        n_live = min(STEP, shape.n - row)
        for i in range(STEP):
            n_elements = shape.head_dim if i < n_live else 0
            address = keys + place + 2 * shape.width * i
            store_bf16_row(k + offset + stride * i, 1.0, n_elements, shape.width, address)
        store_values(shape, v + offset, stride, n_live, scratch.scores, values + place)


@inner
def copy_queries(op, shape, head, first, scratch):
    """Write a block of queries, times the scale of scores and log2(e): pairs of elements of sixteen
    queries side by side. Queries beyond the last are copies of it."""
    x, n_heads = vec.load_words(op, (F.x, F.n_heads))
    factor = LOG2_E * vec.load_f64(op + F.scale)
    line_bytes = 2 * shape.width
    for i in range(BLOCK):
        row = min(first + i, shape.n - 1)
        source = x + 4 * shape.head_dim * (row * n_heads + head)
        store_bf16_row(source, factor, shape.head_dim, shape.width, scratch.lines + line_bytes * i)
    for i in range(0, BLOCK, 8):
        target = scratch.queries + i // LINES * LINES * line_bytes + 4 * (i % LINES)
        for pair in range(0, shape.width // 2, 8):
            vec.transpose(
                target + LINE_BYTES * pair,
                LINE_BYTES,
                scratch.lines + line_bytes * i + 4 * pair,
                line_bytes,
            )


@inner
def multiply_plain(lines, groups, n_steps, out, adds):
    """Compute the products of two tiles of lines with two of groups, ``n_steps`` of each after one
    another.

    Args:
        lines: Address of the first line, bytes to the next, bytes from a tile to that of the next
            step, and bytes to the second sixteen lines.
        groups: Address of the first tile, bytes to that of the next step, and bytes to the second
            sixteen columns.
        out: Address of the sums of a tile, and bytes to those of the second lines, and of the
            second columns.
        adds: Whether the products are added to what is there.
    """
    a, line_bytes, a_step, a_next = lines
    b, b_step, b_next = groups
    sums, next_lines, next_columns = out
    for number in range(2 * BLOCK * LINES):
        line = number // BLOCK
        column = number % BLOCK
        target = sums + line // LINES * next_lines + column // LINES * next_columns
        target += LINE_BYTES * (line % LINES) + 4 * (column % LINES)
        if not adds:
            vec.store_f32(target, 0.0)
        left = a + line // LINES * a_next + line % LINES * line_bytes
        right = b + column // LINES * b_next + 4 * (column % LINES)
        for k in range(STEP * n_steps):
            x = vec.load_bf16(left + k // STEP * a_step + 2 * (k % STEP))
            y = vec.load_bf16(right + k // STEP * b_step + LINE_BYTES * (k % STEP // 2) + k % 2 * 2)
            vec.store_f32(target, vec.load_f32(target) + x * y)


@inner
def multiply_in_tiles(lines, groups, n_steps, out, adds):
    """Compute ``multiply_plain`` with AMX."""
    a, line_bytes, a_step, a_next = lines
    b, b_step, b_next = groups
    sums, next_lines, next_columns = out
    if adds:
        vec.load_tile(0, sums, LINE_BYTES)
        vec.load_tile(1, sums + next_columns, LINE_BYTES)
        vec.load_tile(2, sums + next_lines, LINE_BYTES)
        vec.load_tile(3, sums + next_lines + next_columns, LINE_BYTES)
    else:
        vec.clear_tile(0)
        vec.clear_tile(1)
        vec.clear_tile(2)
        vec.clear_tile(3)
    for _ in range(n_steps):
        vec.load_tile(4, a, line_bytes)
        vec.load_tile(6, b, LINE_BYTES)
        bf16_tiles.multiply_bf16_tiles(0, 4, 6)
        vec.load_tile(7, b + b_next, LINE_BYTES)
        bf16_tiles.multiply_bf16_tiles(1, 4, 7)
        vec.load_tile(5, a + a_next, line_bytes)
        bf16_tiles.multiply_bf16_tiles(2, 5, 6)
        bf16_tiles.multiply_bf16_tiles(3, 5, 7)
        a += a_step
        b += b_step
    vec.store_tile(0, sums, LINE_BYTES)
    vec.store_tile(1, sums + next_columns, LINE_BYTES)
    vec.store_tile(2, sums + next_lines, LINE_BYTES)
    vec.store_tile(3, sums + next_lines + next_columns, LINE_BYTES)


multiply = multiply_in_tiles if HAS_AMX else multiply_plain


@inner
def power_lanes(x):
    """Return 2 to the power of each lane, which is at most 0, to about 4e-5 of it; NaN stays
    NaN."""
    x = vec.fmax(vec.splat_like(x, LOWEST_POWER), x)
    n = vec.round_to_i32(x)
    r = vec.fsub(x, vec.f32_of_i32(n))
    p = vec.splat_like(x, LN2**4 / 24.0)
    p = vec.fma(p, r, vec.splat_like(x, LN2**3 / 6.0))
    p = vec.fma(p, r, vec.splat_like(x, LN2**2 / 2.0))
    p = vec.fma(p, r, vec.splat_like(x, LN2))
    p = vec.fma(p, r, vec.splat_like(x, 1.0))
    return vec.fmul(p, vec.power_of_two(n))


@inner
def largest_scores(scores, n, top):
    """Return the larger one of ``top`` and the scores of n keys, a multiple of 4, lane by lane."""
    a = top
    b = top
    c = top
    d = top
    for key in range(0, n, 4):
        address = scores + LINE_BYTES * key
        a = vec.fmax(vec.load_lanes(address), a)
        b = vec.fmax(vec.load_lanes(address + LINE_BYTES), b)
        c = vec.fmax(vec.load_lanes(address + 2 * LINE_BYTES), c)
        d = vec.fmax(vec.load_lanes(address + 3 * LINE_BYTES), d)
    return vec.fmax(vec.fmax(a, b), vec.fmax(c, d))


@inner
def weigh_keys(scores, n, top, total, weights):
    """Write the weights 2^(score - top) of n keys, an even number, as bfloat16; return ``total``
    plus their sum."""
    for key in range(0, n, 2):
        address = scores + LINE_BYTES * key
        even = bf16_tiles.round_to_bf16(power_lanes(vec.fsub(vec.load_lanes(address), top)))
        odd = vec.fsub(vec.load_lanes(address + LINE_BYTES), top)
        odd = bf16_tiles.round_to_bf16(power_lanes(odd))
        total = vec.fadd(total, vec.fadd(even, odd))
        bf16_tiles.store_rounded_pairs(weights + LINE_BYTES // 2 * key, even, odd)
    return total


@inner
def weigh_chunk(shape, scratch, n):
    """Turn the scores of n keys into weights, and scale the result so far to the new maxima."""
    for lanes in range(0, BLOCK, vec.LANES):
        half = lanes // LINES
        offset = 4 * (lanes % LINES)
        scores = scratch.scores + half * LINE_BYTES * CHUNK + offset
        result = scratch.result + half * LINE_BYTES * shape.width + offset
        top = vec.load_lanes(scratch.tops + 4 * lanes)
        new_top = largest_scores(scores, n, top)
        factor = power_lanes(vec.fsub(top, new_top))
        total = vec.fmul(vec.load_lanes(scratch.totals + 4 * lanes), factor)
        weights = scratch.weights + half * LINE_BYTES // 2 * CHUNK + offset
        total = weigh_keys(scores, n, new_top, total, weights)
        vec.store_lanes(scratch.tops + 4 * lanes, new_top)
        vec.store_lanes(scratch.totals + 4 * lanes, total)
        for i in range(shape.width):
            address = result + LINE_BYTES * i
            vec.store_lanes(address, vec.fmul(vec.load_lanes(address), factor))


@inner
def attend_chunk(shape, scratch, keys, values, n, n_live):
    """Add the values of n keys, times their weights, to the result.

    Args:
        keys, values: Addresses of the first key and of its value.
        n: Number of keys, a multiple of 32.
        n_live: Number of them that are rows.
    """
    key_bytes = 2 * shape.width
    queries = scratch.queries, TILE, LINES * key_bytes
    for key in range(0, n, BLOCK):
        lines = keys + key * key_bytes, key_bytes, LINE_BYTES, LINES * key_bytes
        sums = scratch.scores + LINE_BYTES * key, TILE, LINE_BYTES * CHUNK
        multiply(lines, queries, shape.width // STEP, sums, 0)
    for key in range(n_live, n):
        for lanes in range(0, LINES, vec.LANES):
            masked = scratch.scores + LINE_BYTES * key + 4 * lanes
            lowest = vec.splat_like(vec.load_lanes(masked), MASKED)
            vec.store_lanes(masked, lowest)
            vec.store_lanes(masked + LINE_BYTES * CHUNK, lowest)
    weigh_chunk(shape, scratch, n)
    weights = scratch.weights, TILE, LINE_BYTES // 2 * CHUNK
    for i in range(0, shape.width, BLOCK):
        lines = values + LINE_BYTES * i, LINE_BYTES, LINE_BYTES * shape.width, TILE
        sums = scratch.result + LINE_BYTES * i, TILE, LINE_BYTES * shape.width
        multiply(lines, weights, n // STEP, sums, 1)


@inner
def begin_block(shape, scratch):
    """Clear the result, the sums of weights and the maxima."""
    zero = vec.splat_f32x8(0.0)
    for offset in range(0, 4 * BLOCK * shape.width, 32):
        vec.store_f32x8(scratch.result + offset, zero)
    for offset in range(0, 4 * BLOCK, 32):
        vec.store_f32x8(scratch.totals + offset, zero)
        vec.store_f32x8(scratch.tops + offset, vec.splat_f32x8(MASKED))


@inner
def finish_block(op, shape, head, first, scratch):
    """Divide the result by the sums of weights and write it.

    Up to seven rows beyond the last are written, which the vector has room for.
    """
    out, n_heads = vec.load_words(op, (F.out, F.n_heads))
    for queries in range(0, min(BLOCK, shape.n - first), 8):
        total = vec.load_f32x8(scratch.totals + 4 * queries)
        inverse = vec.fdiv(vec.splat_f32x8(1.0), total)
        result = scratch.result + queries // LINES * LINE_BYTES * shape.width
        result += 4 * (queries % LINES)
        for i in range(shape.head_dim):
            address = result + LINE_BYTES * i
            vec.store_f32x8(address, vec.fmul(vec.load_f32x8(address), inverse))
        row_bytes = 4 * n_heads * shape.head_dim
        target = out + (first + queries) * row_bytes + 4 * head * shape.head_dim
        for i in range(0, shape.head_dim, 8):
            vec.transpose(target + 4 * i, row_bytes, result + LINE_BYTES * i, LINE_BYTES)


@kernel
def attend_to_all(op, thread, n_threads):
    """Compute attention of all rows to all rows, for the heads that the record names; the blocks of
    queries of all these heads are shared among the threads."""
    shape = shape_of(op)
    keys, values, n_slots = vec.load_words(op, (F.k_cache, F.v_cache, F.n_slots))
    first_head, end_head = vec.load_words(op, (F.first_kv_head, F.end_kv_head))
    scratch = scratch_of(op, shape.width, thread)
    n_blocks = (shape.n + BLOCK - 1) // BLOCK
    first, last = share((end_head - first_head) * n_blocks, 1, thread, n_threads)
    if HAS_AMX:
        bf16_tiles.shape_full_tiles()
    for item in range(first, last):
        head = first_head + item // max(n_blocks, 1)
        query = item % max(n_blocks, 1) * BLOCK
        head_bytes = 2 * shape.width * n_slots * head
        copy_queries(op, shape, head, query, scratch)
        begin_block(shape, scratch)
        for key in range(0, shape.n, CHUNK):
            n = min(CHUNK, shape.n_stored - key)
            place = head_bytes + 2 * shape.width * key
            attend_chunk(shape, scratch, keys + place, values + place, n, min(n, shape.n - key))
        finish_block(op, shape, head, query, scratch)
    if HAS_AMX:
        vec.release_tiles()
