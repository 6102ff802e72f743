"""Attention of prefill: tiles of queries by keys, and of weights by values, with all sums in
registers.

scores = queries @ keys, result = softmax(scores) @ values; all sums are f32. The queries of all
tokens and heads that share keys form one list. Up to ``ROWS`` of them pass the chunks of the cache
together: a tile of keys is converted to f32 and multiplied by all queries that see any of it, then
a tile of values. Six queries by sixteen keys need eight loads for twelve products.
"""

from typing import NamedTuple

from engine import simd as vec
from engine.jit import inner
from engine.kernels.attention import (
    HAS_MANY_REGISTERS,
    begin_result,
    cache_addresses,
    copy_query,
    finish_result,
    first_visible,
    last_visible,
    merge_chunk,
    row_bytes,
    weigh,
)
from engine.kernels.attention_sizes import ROWS, SCORE_ROW_BYTES, SPANS_BYTES, WIDEST_KEYS
from engine.kernels.records import ATTENTION_CHUNK as CHUNK
from engine.kernels.records import CACHE as F
from engine.kernels.records import PARTIAL_HEADER as HEADER
from engine.kernels.records import STEP
from engine.simd.tile_sums import add_products, store_sums, zero_sums

KEYS = 2 * vec.LANES
"""Positions, or elements of values, in a tile: two registers."""
TILE_ROWS = 6 if HAS_MANY_REGISTERS else 3
"""Queries in a tile."""


class ScratchLayout(NamedTuple):
    """Addresses of a thread's scratch, and bytes of a row of queries and of results."""

    queries: int
    scores: int
    tile: int
    results: int

    merged: int
    spans: int
    query_bytes: int
    result_bytes: int


class QueryRows(NamedTuple):
    """Queries of one KV head.

    Attributes:
        first: Index of the first query.
        n: Number of queries.
        group: Query heads of a token that share the KV head.
        start_pos: Position of the first token.
    """

    first: int
    n: int
    kv_head: int
    group: int
    start_pos: int


@inner
def layout_of(op, thread):
    """Divide the scratch of a thread."""
    head_dim = vec.load_i64(op + F.head_dim)
    query_bytes = 4 * head_dim
    result_bytes = 4 * (HEADER + (head_dim + WIDEST_KEYS - 1) // WIDEST_KEYS * WIDEST_KEYS)
    queries = vec.load_i64(op + F.scratch) + thread * vec.load_i64(op + F.scratch_bytes)
    scores = queries + ROWS * query_bytes
    results = scores + ROWS * SCORE_ROW_BYTES

    merged = results + ROWS * result_bytes
    spans = merged + ROWS * result_bytes
    return ScratchLayout(
        queries, scores, spans + SPANS_BYTES, results, merged, spans, query_bytes, result_bytes
    )


@inner
def query_of(op, rows, row):
    """Return the position of a query's token, and its head."""
    number = rows.first + row
    return rows.start_pos + number // rows.group, rows.kv_head * rows.group + number % rows.group


@inner
def store_visible_ranges(op, rows, spans):
    """Write the range of positions that any query of each tile sees, in multiples of eight."""
    for row in range(0, rows.n, TILE_ROWS):
        pos, _ = query_of(op, rows, row)
        last_pos, _ = query_of(op, rows, min(row + TILE_ROWS, rows.n) - 1)
        first_position = first_visible(op, pos)
        last_position = last_visible(op, last_pos)
        vec.store_i64(spans + 16 * (row // TILE_ROWS), first_position - first_position % 8)
        vec.store_i64(spans + 16 * (row // TILE_ROWS) + 8, last_position + 8 - last_position % 8)


@inner
def visible_range(spans, tile, first, end):
    """Return the range of positions first <= p < end that a tile of queries sees.

    Both ends are multiples of eight. The range is empty if the tile sees none of them.
    """
    return max(first, vec.load_i64(spans + 16 * tile)), min(
        end + -end % 8, vec.load_i64(spans + 16 * tile + 8)
    )


@inner
def multiply_tile(address, row_bytes, factors, n, out, out_row_bytes):
    """Multiply ``TILE_ROWS`` rows of n f32 by ``factors`` [n][KEYS] f32, each sum in order."""
    sums = zero_sums(vec.load_lanes(factors), TILE_ROWS, 2)
    for i in range(n):
        low = factors + 4 * KEYS * i
        sums = add_products(
            sums, address + 4 * i, row_bytes, (vec.load_lanes(low), vec.load_lanes(low + 2 * KEYS))
        )
    store_sums(sums, out, out_row_bytes)


@inner
def copy_queries(op, rows, scratch):
    """Copy the queries of the list, fill the last tile with zeros, and clear their results."""
    n_heads = vec.load_i64(op + F.n_heads)
    for row in range((rows.n + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS):
        query = scratch.queries + row * scratch.query_bytes
        if row < rows.n:
            pos, head = query_of(op, rows, row)
            copy_query(op, (pos - rows.start_pos) * n_heads + head, query)
            acc = scratch.merged + row * scratch.result_bytes
            top, total = begin_result(op, head, acc + 4 * HEADER)
            vec.store_f32(acc, vec.max_f32x8(top))
            vec.store_f32(acc + 4, vec.max_f32x8(total))
        else:
            for i in range(0, scratch.query_bytes, 32):
                vec.store_f32x8(query + i, vec.splat_f32x8(0.0))


@inner
def convert_keys(cache, head_dim, keys, scales, n, to):
    """Write the keys of up to ``KEYS`` positions side by side: [head_dim][KEYS] f32."""
    _, _, load_k, _, _, _ = cache
    k_row, scale_row, _, _ = row_bytes(cache, head_dim)
    for p in range(0, min(n, KEYS), 8):
        tile = keys + p * k_row
        tile_scales = scales + p * scale_row
        for i in range(head_dim):
            vec.store_f32x8(to + 4 * (KEYS * i + p), load_k(tile, tile_scales, i))


@inner
def convert_values(cache, head_dim, values, scales, n, first, to):
    """Write elements ``first`` to ``first + KEYS`` of the values of n positions: [n][KEYS] f32.

    Elements beyond ``head_dim`` are not written.
    """
    _, _, _, _, _, load_v = cache
    _, _, v_row, scale_row = row_bytes(cache, head_dim)
    for e in range(first, min(first + KEYS, head_dim), 8):
        for p in range(n):
            vec.store_f32x8(
                to + 4 * (KEYS * p + e - first),
                load_v(values + p * v_row, scales + p * scale_row, e),
            )


@inner
def attend_chunk(cache, op, rows, scratch, first, end):
    """Attend to positions first <= p < end of one chunk; ``first`` is a multiple of eight."""
    head_dim = vec.load_i64(op + F.head_dim)
    n_tiles = (rows.n + TILE_ROWS - 1) // TILE_ROWS
    k_row, k_scale_row, _, _ = row_bytes(cache, head_dim)
    keys, k_scales, values, v_scales = cache_addresses(cache, op, rows.kv_head, first)
    tile_query_bytes = TILE_ROWS * scratch.query_bytes
    tile_result_bytes = TILE_ROWS * scratch.result_bytes
    for p in range(0, end - first, KEYS):
        convert_keys(
            cache,
            head_dim,
            keys + p * k_row,
            k_scales + p * k_scale_row,
            end - first - p,
            scratch.tile,
        )
        for tile in range(n_tiles):
            start, stop = visible_range(scratch.spans, tile, first, end)
            if start < first + p + KEYS and first + p < stop:
                multiply_tile(
                    scratch.queries + tile * tile_query_bytes, scratch.query_bytes, scratch.tile,
                    head_dim,
                    scratch.scores + tile * TILE_ROWS * SCORE_ROW_BYTES + 4 * p, SCORE_ROW_BYTES,
                )  # fmt: skip
    for row in range(rows.n):
        start, stop = visible_range(scratch.spans, row // TILE_ROWS, first, end)
        pos, head = query_of(op, rows, row)
        row_scores = scratch.scores + row * SCORE_ROW_BYTES + 4 * (start - first)
        weigh(op, head, pos, row_scores, start, stop, scratch.results + row * scratch.result_bytes)
    for e in range(0, head_dim, KEYS):
        convert_values(cache, head_dim, values, v_scales, end - first, e, scratch.tile)
        for tile in range(n_tiles):
            start, stop = visible_range(scratch.spans, tile, first, end)
            multiply_tile(
                scratch.scores + tile * TILE_ROWS * SCORE_ROW_BYTES + 4 * (start - first),
                SCORE_ROW_BYTES,
                scratch.tile + 4 * KEYS * (start - first), min(end, stop) - start,
                scratch.results + tile * tile_result_bytes + 4 * (HEADER + e), scratch.result_bytes,
            )  # fmt: skip
    for row in range(rows.n):
        acc = scratch.merged + row * scratch.result_bytes
        top = vec.splat_f32x8(vec.load_f32(acc))
        total = vec.splat_f32x8(vec.load_f32(acc + 4))
        top, total = merge_chunk(
            top, total, acc + 4 * HEADER, scratch.results + row * scratch.result_bytes, head_dim
        )
        vec.store_f32(acc, vec.max_f32x8(top))
        vec.store_f32(acc + 4, vec.max_f32x8(total))


@inner
def attend_rows(cache, op, rows, scratch):
    """Compute the attention of one list of queries."""
    head_dim, n_heads = vec.load_words(op, (F.head_dim, F.n_heads))
    copy_queries(op, rows, scratch)
    store_visible_ranges(op, rows, scratch.spans)
    pos, _ = query_of(op, rows, 0)
    last_pos, _ = query_of(op, rows, rows.n - 1)
    first_position = first_visible(op, pos)
    last_position = last_visible(op, last_pos)
    for chunk in range(first_position // CHUNK, last_position // CHUNK + 1):
        first = max(chunk * CHUNK, first_position - first_position % 8)
        attend_chunk(cache, op, rows, scratch, first, min((chunk + 1) * CHUNK, last_position + 1))
    for row in range(rows.n):
        pos, head = query_of(op, rows, row)
        acc = scratch.merged + row * scratch.result_bytes
        out = vec.load_i64(op + F.out) + 4 * head_dim * ((pos - rows.start_pos) * n_heads + head)
        finish_result(vec.splat_f32x8(vec.load_f32(acc + 4)), acc + 4 * HEADER, head_dim, out)


@inner
def attend_tokens(cache, op, thread, n_threads):
    """Compute attention of prefill.

    Lists of queries are dealt to the threads in turn; one thread computes a list from first to last
    chunk. The record names a range of KV heads, so one operation stays short.
    """
    step = vec.load_i64(op + F.step)
    scratch = layout_of(op, thread)
    n_tokens, start_pos = vec.load_words(step, (STEP.n_tokens, STEP.start_pos))
    group = vec.load_i64(op + F.n_heads) // vec.load_i64(op + F.n_kv_heads)
    # numba would compile a check and an exception for a step of 0
    n_queries = n_tokens * group
    threads = max(n_threads, 1)
    n_lists = (n_queries + ROWS - 1) // ROWS
    n_lists += -n_lists % threads
    list_size = (n_queries + TILE_ROWS * n_lists - 1) // (TILE_ROWS * n_lists) * TILE_ROWS
    for kv_head in range(vec.load_i64(op + F.first_kv_head), vec.load_i64(op + F.end_kv_head)):
        for first in range(thread * list_size, n_queries, threads * max(list_size, 1)):
            rows = QueryRows(first, min(list_size, n_queries - first), kv_head, group, start_pos)
            attend_rows(cache, op, rows, scratch)
