"""Attention of decode: all query heads that share keys read a chunk of the cache together.

scores = query @ keys, result = softmax(scores) @ values; all sums are f32. Keys and values are
converted to f32 as they are read. Several registers of keys, or of values, side by side give a
small number of heads enough independent sums.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.attention import (
    HAS_MANY_REGISTERS,
    cache_addresses,
    copy_query,
    first_visible,
    row_bytes,
    weigh,
)
from engine.kernels.attention_sizes import ROWS, SCORE_ROW_BYTES
from engine.kernels.records import ATTENTION_CHUNK as CHUNK
from engine.kernels.records import CACHE as F
from engine.kernels.records import PARTIAL_HEADER as HEADER
from engine.kernels.records import STEP
from engine.kernels.share import share
from engine.simd.tile_sums import add_products, store_sums, zero_sums

KEYS_AT_ONCE = 32
"""Keys that all heads read before the next ones; they stay in the first-level cache."""


@inner
def one_register(load, address, scales, i, stride):
    """Load the first register of a tile."""
    return (load(address, scales, i),)


@inner
def two_registers(load, address, scales, i, stride):
    """Load two registers.

    ``stride`` is the distance between them: in bytes, in bytes of scales and in elements.
    """
    return load(address, scales, i), load(address + stride[0], scales + stride[1], i + stride[2])


@inner
def four_registers(load, address, scales, i, stride):
    """Load four registers."""
    a, b = two_registers(load, address, scales, i, stride)
    c, d = two_registers(
        load, address + 2 * stride[0], scales + 2 * stride[1], i + 2 * stride[2], stride
    )
    return a, b, c, d


NARROW_TILE, WIDE_TILE = (
    (two_registers, four_registers) if HAS_MANY_REGISTERS else (one_register, two_registers)
)
"""Loaders of a tile: for three heads or more, and for one or two."""
N_NARROW, N_WIDE = (2, 4) if HAS_MANY_REGISTERS else (1, 2)
"""Registers of each of these tiles."""


@inner
def multiply_tile(
    registers, load, sums, rows, address, scales, i, stride, step, n, prefetch, out, out_row_bytes
):
    """Multiply rows of n f32 by a tile of registers.

    Args:
        prefetch: Address to prefetch from, and bits to prefetch for each step and register.
    """
    row_address, row_bytes = rows
    prefetch_address, prefetch_bits = prefetch
    for k in range(n):
        vec.prefetch_l2(prefetch_address + k * len(sums[0]) * prefetch_bits)
        factors = registers(
            load, address + k * step[0], scales + k * step[1], i + k * step[2], stride
        )
        sums = add_products(sums, row_address + 4 * k, row_bytes, factors)
    store_sums(sums, out, out_row_bytes)


@inner
def multiply_rows(
    registers,
    load,
    sums,
    rows,
    address,
    scales,
    stride,
    step,
    n,
    n_registers,
    prefetch,
    out,
    out_row_bytes,
):
    """Multiply rows by any number of registers.

    Tiles as wide as the sums come first; the remaining registers are multiplied row by row.
    """
    row_address, row_bytes = rows
    prefetch_address, prefetch_bits = prefetch
    tile_width = len(sums[0])
    n_in_tiles = n_registers - n_registers % tile_width
    for r in range(0, n_in_tiles, tile_width):
        multiply_tile(
            registers, load, sums, rows, address + r * stride[0], scales + r * stride[1],
            r * stride[2],
            stride, step, n,
            (prefetch_address + r * n * prefetch_bits, prefetch_bits), out + 32 * r, out_row_bytes,
        )  # fmt: skip
    for r in range(n_in_tiles, n_registers):
        for h in range(vec.rolled(len(sums))):
            multiply_tile(
                one_register, load, zero_sums(sums[0][0], 1, 1),
                (row_address + h * row_bytes, row_bytes),
                address + r * stride[0],
                scales + r * stride[1], r * stride[2], stride, step, n,
                (prefetch_address + r * n * prefetch_bits, prefetch_bits),
                out + 32 * r + h * out_row_bytes, out_row_bytes,
            )  # fmt: skip


@inner
def heads_at_once(n_heads):
    """Return how many of ``n_heads`` remaining heads to multiply next.

    At most six, and divided so that the last heads have enough independent sums.
    """
    if n_heads > 10:
        return 6
    if n_heads > 6:
        return 4 if n_heads == 8 else 5
    return n_heads


@inner
def multiply_heads(
    load, n_heads, rows, address, scales, stride, step, n, n_registers, prefetch, out, out_row_bytes
):
    """Multiply rows of any number of heads by any number of registers.

    The first heads prefetch.
    """
    row_address, row_bytes = rows
    zero = vec.splat_f32x8(0.0)
    h = 0
    while h < n_heads:
        n_taken = heads_at_once(n_heads - h)
        rows = (row_address + h * row_bytes, row_bytes)
        head_out = out + h * out_row_bytes
        if n_taken == 6:
            sums = zero_sums(zero, 6, N_NARROW)
            multiply_rows(
                NARROW_TILE,
                load,
                sums,
                rows,
                address,
                scales,
                stride,
                step,
                n,
                n_registers,
                prefetch,
                head_out,
                out_row_bytes,
            )
        elif n_taken == 5:
            sums = zero_sums(zero, 5, N_NARROW)
            multiply_rows(
                NARROW_TILE,
                load,
                sums,
                rows,
                address,
                scales,
                stride,
                step,
                n,
                n_registers,
                prefetch,
                head_out,
                out_row_bytes,
            )
        elif n_taken == 4:
            sums = zero_sums(zero, 4, N_NARROW)
            multiply_rows(
                NARROW_TILE,
                load,
                sums,
                rows,
                address,
                scales,
                stride,
                step,
                n,
                n_registers,
                prefetch,
                head_out,
                out_row_bytes,
            )
        elif n_taken == 3:
            sums = zero_sums(zero, 3, N_NARROW)
            multiply_rows(
                NARROW_TILE,
                load,
                sums,
                rows,
                address,
                scales,
                stride,
                step,
                n,
                n_registers,
                prefetch,
                head_out,
                out_row_bytes,
            )
        elif n_taken == 2:
            sums = zero_sums(zero, 2, N_WIDE)
            multiply_rows(
                WIDE_TILE,
                load,
                sums,
                rows,
                address,
                scales,
                stride,
                step,
                n,
                n_registers,
                prefetch,
                head_out,
                out_row_bytes,
            )
        else:
            sums = zero_sums(zero, 1, N_WIDE)
            multiply_rows(
                WIDE_TILE,
                load,
                sums,
                rows,
                address,
                scales,
                stride,
                step,
                n,
                n_registers,
                prefetch,
                head_out,
                out_row_bytes,
            )
        h += n_taken
        prefetch = (prefetch[0], 0)


@inner
def attend_chunk(
    cache, op, kv_head, first_head, n_heads, pos, first, end, next_keys, scratch, out, out_bytes
):
    """Attend to positions first <= p < end of a chunk with the heads of one KV head.

    ``first`` is a multiple of eight. Values are prefetched while the keys are read, and the next
    keys while the values are read.


    Args:
        out: Address of the first head's result; results of heads are ``out_bytes`` apart.
    """
    k_bits, _, load_k, v_bits, _, load_v = cache
    head_dim = vec.load_i64(op + F.head_dim)
    k_row, k_scale_row, v_row, v_scale_row = row_bytes(cache, head_dim)
    keys, k_scales, values, v_scales = cache_addresses(cache, op, kv_head, first)
    query_bytes = 4 * head_dim
    scores = scratch + 4 * ROWS * head_dim
    for h in range(n_heads):
        copy_query(op, first_head + h, scratch + h * query_bytes)
    for p in range(0, end - first, KEYS_AT_ONCE):
        n = min(KEYS_AT_ONCE, end - first - p)
        multiply_heads(
            load_k, n_heads, (scratch, query_bytes), keys + p * k_row, k_scales + p * k_scale_row,
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
    """Compute the first half of attention in decode, for one token.

    The threads share the (KV head, chunk) pairs. The result of each head and chunk goes to ``out``.
    The pairs of a thread follow each other in memory, so it prefetches what it reads next.
    """
    pos = vec.load_i64(vec.load_i64(op + F.step) + STEP.start_pos)
    n_heads, n_kv_heads = vec.load_words(op, (F.n_heads, F.n_kv_heads))
    head_dim, max_chunks = vec.load_words(op, (F.head_dim, F.max_chunks))
    group = n_heads // n_kv_heads
    result_bytes = 4 * (HEADER + head_dim)
    scratch = vec.load_i64(op + F.scratch) + thread * vec.load_i64(op + F.scratch_bytes)
    first_position = first_visible(op, pos)
    first_chunk = first_position // CHUNK
    n_chunks = pos // CHUNK + 1 - first_position // CHUNK
    first_item, end_item = share(n_chunks * n_kv_heads, 1, thread, n_threads)
    for item in range(first_item, end_item):
        kv_head = item // n_chunks
        chunk = item % n_chunks
        first = max(first_position - first_position % 8, (first_chunk + chunk) * CHUNK)
        end = min((first_chunk + chunk + 1) * CHUNK, pos + 1)
        next_item = min(item + 1, end_item - 1)
        next_keys, _, _, _ = cache_addresses(
            cache, op, next_item // n_chunks, (first_chunk + next_item % n_chunks) * CHUNK
        )
        for head in range(kv_head * group, (kv_head + 1) * group, ROWS):
            n = min(ROWS, (kv_head + 1) * group - head)
            out = vec.load_i64(op + F.out) + (head * max_chunks + chunk) * result_bytes
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
                scratch,
                out,
                max_chunks * result_bytes,
            )
