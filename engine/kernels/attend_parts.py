"""Attention of decode: all query heads that share keys go through a chunk together, converting it
as they read it.

Several registers of keys, or of values, side by side give few heads enough sums that wait for
nothing.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.attention import (
    HAS_MANY_REGISTERS,
    first_seen,
    places,
    row_bytes,
    take_query,
    weigh,
)
from engine.kernels.attention_sizes import ROWS, SCORE_ROW_BYTES
from engine.kernels.records import ATTENTION_CHUNK as CHUNK
from engine.kernels.records import CACHE as F
from engine.kernels.records import PARTIAL_HEADER as HEADER
from engine.kernels.records import STEP
from engine.kernels.share import share
from engine.simd.tile_sums import add_products, no_sums, store_sums

KEYS_AT_ONCE = 32
"""Keys that all heads meet before the next, from the first level of the cache."""


@inner
def one(load, at, scales, i, apart):
    """The first register of a tile."""
    return (load(at, scales, i),)


@inner
def two(load, at, scales, i, apart):
    """Two registers: they are apart in bytes, in bytes of scales and in elements."""
    return load(at, scales, i), load(at + apart[0], scales + apart[1], i + apart[2])


@inner
def four(load, at, scales, i, apart):
    """Four registers."""
    a, b = two(load, at, scales, i, apart)
    c, d = two(load, at + 2 * apart[0], scales + 2 * apart[1], i + 2 * apart[2], apart)
    return a, b, c, d


NARROW_TILE, WIDE_TILE = (two, four) if HAS_MANY_REGISTERS else (one, two)
"""Registers side by side for three heads or more, and for one or two."""
N_NARROW, N_WIDE = (2, 4) if HAS_MANY_REGISTERS else (1, 2)


@inner
def multiply_tile(
    registers, load, sums, rows, at, scales, i, apart, along, n, ask, out, out_row_bytes
):
    """Rows of n f32 times a tile whose registers are ``apart``, ``along`` from one step to the
    next.

    Args:
        ask: address from which on memory is asked for, and bits for each step and register.
    """
    address, row_bytes = rows
    ahead, bits = ask
    for k in range(n):
        vec.prefetch_l2(ahead + k * len(sums[0]) * bits)
        factors = registers(load, at + k * along[0], scales + k * along[1], i + k * along[2], apart)
        sums = add_products(sums, address + 4 * k, row_bytes, factors)
    store_sums(sums, out, out_row_bytes)


@inner
def multiply_rows(
    registers, load, sums, rows, at, scales, apart, along, n, n_registers, ask, out, out_row_bytes
):
    """The same for any number of registers: as many as the sums have at a time; what is left, row
    by row."""
    address, row_bytes = rows
    ahead, bits = ask
    wide = len(sums[0])
    whole = n_registers - n_registers % wide
    for r in range(0, whole, wide):
        multiply_tile(
            registers, load, sums, rows, at + r * apart[0], scales + r * apart[1], r * apart[2],
            apart, along, n,
            (ahead + r * n * bits, bits), out + 32 * r, out_row_bytes,
        )  # fmt: skip
    for r in range(whole, n_registers):
        for h in range(vec.rolled(len(sums))):
            multiply_tile(
                one, load, no_sums(sums[0][0], 1, 1), (address + h * row_bytes, row_bytes),
                at + r * apart[0],
                scales + r * apart[1], r * apart[2], apart, along, n, (ahead + r * n * bits, bits),
                out + 32 * r + h * out_row_bytes, out_row_bytes,
            )  # fmt: skip


@inner
def heads_at_once(left):
    """Of so many heads left, how many to take: six at most, and so that the last have sums
    enough."""
    if left > 10:
        return 6
    if left > 6:
        return 4 if left == 8 else 5
    return left


@inner
def multiply_heads(
    load, n_heads, rows, at, scales, apart, along, n, n_registers, ask, out, out_row_bytes
):
    """The same for any number of heads; the first that are taken ask."""
    address, row_bytes = rows
    zero = vec.splat_f32x8(0.0)
    h = 0
    while h < n_heads:
        taken = heads_at_once(n_heads - h)
        rows = (address + h * row_bytes, row_bytes)
        to = out + h * out_row_bytes
        if taken == 6:
            sums = no_sums(zero, 6, N_NARROW)
            multiply_rows(
                NARROW_TILE,
                load,
                sums,
                rows,
                at,
                scales,
                apart,
                along,
                n,
                n_registers,
                ask,
                to,
                out_row_bytes,
            )
        elif taken == 5:
            sums = no_sums(zero, 5, N_NARROW)
            multiply_rows(
                NARROW_TILE,
                load,
                sums,
                rows,
                at,
                scales,
                apart,
                along,
                n,
                n_registers,
                ask,
                to,
                out_row_bytes,
            )
        elif taken == 4:
            sums = no_sums(zero, 4, N_NARROW)
            multiply_rows(
                NARROW_TILE,
                load,
                sums,
                rows,
                at,
                scales,
                apart,
                along,
                n,
                n_registers,
                ask,
                to,
                out_row_bytes,
            )
        elif taken == 3:
            sums = no_sums(zero, 3, N_NARROW)
            multiply_rows(
                NARROW_TILE,
                load,
                sums,
                rows,
                at,
                scales,
                apart,
                along,
                n,
                n_registers,
                ask,
                to,
                out_row_bytes,
            )
        elif taken == 2:
            sums = no_sums(zero, 2, N_WIDE)
            multiply_rows(
                WIDE_TILE,
                load,
                sums,
                rows,
                at,
                scales,
                apart,
                along,
                n,
                n_registers,
                ask,
                to,
                out_row_bytes,
            )
        else:
            sums = no_sums(zero, 1, N_WIDE)
            multiply_rows(
                WIDE_TILE,
                load,
                sums,
                rows,
                at,
                scales,
                apart,
                along,
                n,
                n_registers,
                ask,
                to,
                out_row_bytes,
            )
        h += taken
        ask = (ask[0], 0)


@inner
def attend_chunk(
    cache, op, kv_head, first_head, n_heads, pos, first, end, next_keys, room, out, out_bytes
):
    """Attend to positions first <= p < end of a chunk with heads of one KV head; ``first`` is a
    multiple of eight.

    Memory is asked for the values while the keys are read, and for the next keys while the values
    are.

    Args:
        out: where the first head's result goes; the others' are ``out_bytes`` apart.
    """
    k_bits, _, load_k, v_bits, _, load_v = cache
    head_dim = vec.load_i64(op + F.head_dim)
    k_row, k_scale_row, v_row, v_scale_row = row_bytes(cache, head_dim)
    keys, k_scales, values, v_scales = places(cache, op, kv_head, first)
    query_bytes = 4 * head_dim
    scores = room + 4 * ROWS * head_dim
    for h in range(n_heads):
        take_query(op, first_head + h, room + h * query_bytes)
    for p in range(0, end - first, KEYS_AT_ONCE):
        n = min(KEYS_AT_ONCE, end - first - p)
        multiply_heads(
            load_k, n_heads, (room, query_bytes), keys + p * k_row, k_scales + p * k_scale_row,
            (8 * k_row, 8 * k_scale_row, 0), (0, 0, 1), head_dim, (n + 7) // 8,
            (values + p * v_row, v_bits),
            scores + 4 * p, SCORE_ROW_BYTES,
        )  # fmt: skip
    for h in range(n_heads):
        weigh(
            op,
            first_head + h,
            pos,
            scores + h * SCORE_ROW_BYTES,
            first,
            end + -end % 8,
            out + h * out_bytes,
        )
    multiply_heads(
        load_v, n_heads, (scores, SCORE_ROW_BYTES), values, v_scales,
        (0, 0, 8), (v_row, v_scale_row, 0), end - first, head_dim // 8, (next_keys, k_bits),
        out + 4 * HEADER, out_bytes,
    )  # fmt: skip


@inner
def attend_parts(cache, op, thread, n_threads):
    """Decode, first half: (KV head, chunk) pairs of one token; each head's and chunk's result goes
    to ``out``.

    A thread's pairs follow each other in memory, so that what it asks for ahead is what it reads
    next.
    """
    pos = vec.load_i64(vec.load_i64(op + F.step) + STEP.start_pos)
    n_heads, n_kv_heads = vec.load_words(op, (F.n_heads, F.n_kv_heads))
    head_dim, max_chunks = vec.load_words(op, (F.head_dim, F.max_chunks))
    group = n_heads // n_kv_heads
    part_bytes = 4 * (HEADER + head_dim)
    room = vec.load_i64(op + F.scratch) + thread * vec.load_i64(op + F.scratch_bytes)
    seen = first_seen(op, pos)
    first_chunk = seen // CHUNK
    n_chunks = pos // CHUNK + 1 - seen // CHUNK
    first_item, end_item = share(n_chunks * n_kv_heads, 1, thread, n_threads)
    for item in range(first_item, end_item):
        kv_head = item // n_chunks
        chunk = item % n_chunks
        first = max(seen - seen % 8, (first_chunk + chunk) * CHUNK)
        end = min((first_chunk + chunk + 1) * CHUNK, pos + 1)
        later = min(item + 1, end_item - 1)
        next_keys, _, _, _ = places(
            cache, op, later // n_chunks, (first_chunk + later % n_chunks) * CHUNK
        )
        for head in range(kv_head * group, (kv_head + 1) * group, ROWS):
            n = min(ROWS, (kv_head + 1) * group - head)
            out = vec.load_i64(op + F.out) + (head * max_chunks + chunk) * part_bytes
            attend_chunk(
                cache,
                op,
                kv_head,
                head,
                n,
                pos,
                first,
                end,
                next_keys,
                room,
                out,
                max_chunks * part_bytes,
            )
