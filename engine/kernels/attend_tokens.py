"""Attention of a prompt's tokens: tiles of queries by keys, and by elements of values, with all
sums in registers.

The queries of all tokens and heads that share keys are one list. Up to ``ROWS`` of it go through
the chunks together: a tile of keys at a time is converted to f32 and multiplied by all that see any
of it, then a tile of values. Six queries by sixteen keys need eight loads for twelve products.
"""

from typing import NamedTuple

from engine import simd as vec
from engine.jit import inner
from engine.kernels.attention import (
    HAS_MANY_REGISTERS,
    begin_joined,
    first_seen,
    join_chunk,
    last_seen,
    leave_joined,
    places,
    row_bytes,
    take_query,
    weigh,
)
from engine.kernels.attention_sizes import ROWS, SCORE_ROW_BYTES, SPANS_BYTES, WIDEST_KEYS
from engine.kernels.records import ATTENTION_CHUNK as CHUNK
from engine.kernels.records import CACHE as F
from engine.kernels.records import PARTIAL_HEADER as HEADER
from engine.kernels.records import STEP
from engine.simd.tile_sums import add_products, no_sums, store_sums

KEYS = 2 * vec.LANES
"""Positions, or elements of values, of a tile: two registers."""
TILE_ROWS = 6 if HAS_MANY_REGISTERS else 3
"""Queries of a tile."""


class ScratchLayout(NamedTuple):
    """Where a thread's scratch holds what, and the bytes of a row of queries and of results."""

    queries: int
    scores: int
    tile: int
    results: int
    joined: int
    spans: int
    query_bytes: int
    result_bytes: int


class Rows(NamedTuple):
    """Queries of one KV head: the first's number, how many there are, heads of a token, position of
    the first token."""

    first: int
    n: int
    kv_head: int
    group: int
    start_pos: int


@inner
def scratch_of(op, thread):
    """Share the thread's scratch."""
    head_dim = vec.load_i64(op + F.head_dim)
    query_bytes = 4 * head_dim
    result_bytes = 4 * (HEADER + (head_dim + WIDEST_KEYS - 1) // WIDEST_KEYS * WIDEST_KEYS)
    queries = vec.load_i64(op + F.scratch) + thread * vec.load_i64(op + F.scratch_bytes)
    scores = queries + ROWS * query_bytes
    results = scores + ROWS * SCORE_ROW_BYTES
    joined = results + ROWS * result_bytes
    spans = joined + ROWS * result_bytes
    return ScratchLayout(
        queries, scores, spans + SPANS_BYTES, results, joined, spans, query_bytes, result_bytes
    )


@inner
def query_of(op, rows, row):
    """(token's position, head) of a query."""
    number = rows.first + row
    return rows.start_pos + number // rows.group, rows.kv_head * rows.group + number % rows.group


@inner
def store_spans(op, rows, spans):
    """For each tile of queries the positions that any of them sees: the first, and the end in whole
    eights."""
    for row in range(0, rows.n, TILE_ROWS):
        pos, _ = query_of(op, rows, row)
        last_pos, _ = query_of(op, rows, min(row + TILE_ROWS, rows.n) - 1)
        seen = first_seen(op, pos)
        last = last_seen(op, last_pos)
        vec.store_i64(spans + 16 * (row // TILE_ROWS), seen - seen % 8)
        vec.store_i64(spans + 16 * (row // TILE_ROWS) + 8, last + 8 - last % 8)


@inner
def span(spans, tile, first, end):
    """What a tile of queries sees of positions first <= p < end: (first, end) in whole eights;
    empty where nothing."""
    return max(first, vec.load_i64(spans + 16 * tile)), min(
        end + -end % 8, vec.load_i64(spans + 16 * tile + 8)
    )


@inner
def multiply_tile(at, row_bytes, factors, n, out, out_row_bytes):
    """Rows of n f32, ``TILE_ROWS`` of them, times ``factors`` [n][KEYS] f32, each sum in order."""
    sums = no_sums(vec.load_lanes(factors), TILE_ROWS, 2)
    for i in range(n):
        low = factors + 4 * KEYS * i
        sums = add_products(
            sums, at + 4 * i, row_bytes, (vec.load_lanes(low), vec.load_lanes(low + 2 * KEYS))
        )
    store_sums(sums, out, out_row_bytes)


@inner
def take_queries(op, rows, room):
    """Copy the list's queries, zeros where a tile has none, and begin their results."""
    n_heads = vec.load_i64(op + F.n_heads)
    for row in range((rows.n + TILE_ROWS - 1) // TILE_ROWS * TILE_ROWS):
        to = room.queries + row * room.query_bytes
        if row < rows.n:
            pos, head = query_of(op, rows, row)
            take_query(op, (pos - rows.start_pos) * n_heads + head, to)
            acc = room.joined + row * room.result_bytes
            top, total = begin_joined(op, head, acc + 4 * HEADER)
            vec.store_f32(acc, vec.max_f32x8(top))
            vec.store_f32(acc + 4, vec.max_f32x8(total))
        else:
            for i in range(0, room.query_bytes, 32):
                vec.store_f32x8(to + i, vec.splat_f32x8(0.0))


@inner
def convert_keys(cache, head_dim, keys, scales, n, to):
    """Keys of up to ``KEYS`` positions side by side: [head_dim][KEYS] f32."""
    _, _, load_k, _, _, _ = cache
    k_row, scale_row, _, _ = row_bytes(cache, head_dim)
    for p in range(0, min(n, KEYS), 8):
        tile = keys + p * k_row
        tile_scales = scales + p * scale_row
        for i in range(head_dim):
            vec.store_f32x8(to + 4 * (KEYS * i + p), load_k(tile, tile_scales, i))


@inner
def convert_values(cache, head_dim, values, scales, n, first, to):
    """``KEYS`` elements from ``first`` on, or what the head has of them, of n positions: [n][KEYS]
    f32."""
    _, _, _, _, _, load_v = cache
    _, _, v_row, scale_row = row_bytes(cache, head_dim)
    for e in range(first, min(first + KEYS, head_dim), 8):
        for p in range(n):
            vec.store_f32x8(
                to + 4 * (KEYS * p + e - first),
                load_v(values + p * v_row, scales + p * scale_row, e),
            )


@inner
def attend_chunk(cache, op, rows, room, first, end):
    """Attend to positions first <= p < end of one chunk; ``first`` is a multiple of eight."""
    head_dim = vec.load_i64(op + F.head_dim)
    n_tiles = (rows.n + TILE_ROWS - 1) // TILE_ROWS
    k_row, k_scale_row, _, _ = row_bytes(cache, head_dim)
    keys, k_scales, values, v_scales = places(cache, op, rows.kv_head, first)
    tile_query_bytes = TILE_ROWS * room.query_bytes
    tile_result_bytes = TILE_ROWS * room.result_bytes
    for p in range(0, end - first, KEYS):
        convert_keys(
            cache,
            head_dim,
            keys + p * k_row,
            k_scales + p * k_scale_row,
            end - first - p,
            room.tile,
        )
        for tile in range(n_tiles):
            seen, seen_end = span(room.spans, tile, first, end)
            if seen < first + p + KEYS and first + p < seen_end:
                multiply_tile(
                    room.queries + tile * tile_query_bytes, room.query_bytes, room.tile, head_dim,
                    room.scores + tile * TILE_ROWS * SCORE_ROW_BYTES + 4 * p, SCORE_ROW_BYTES,
                )  # fmt: skip
    for row in range(rows.n):
        seen, seen_end = span(room.spans, row // TILE_ROWS, first, end)
        pos, head = query_of(op, rows, row)
        at = room.scores + row * SCORE_ROW_BYTES + 4 * (seen - first)
        weigh(op, head, pos, at, seen, seen_end, room.results + row * room.result_bytes)
    for e in range(0, head_dim, KEYS):
        convert_values(cache, head_dim, values, v_scales, end - first, e, room.tile)
        for tile in range(n_tiles):
            seen, seen_end = span(room.spans, tile, first, end)
            multiply_tile(
                room.scores + tile * TILE_ROWS * SCORE_ROW_BYTES + 4 * (seen - first),
                SCORE_ROW_BYTES,
                room.tile + 4 * KEYS * (seen - first), min(end, seen_end) - seen,
                room.results + tile * tile_result_bytes + 4 * (HEADER + e), room.result_bytes,
            )  # fmt: skip
    for row in range(rows.n):
        acc = room.joined + row * room.result_bytes
        top = vec.splat_f32x8(vec.load_f32(acc))
        total = vec.splat_f32x8(vec.load_f32(acc + 4))
        top, total = join_chunk(
            top, total, acc + 4 * HEADER, room.results + row * room.result_bytes, head_dim
        )
        vec.store_f32(acc, vec.max_f32x8(top))
        vec.store_f32(acc + 4, vec.max_f32x8(total))


@inner
def attend_rows(cache, op, rows, room):
    """Attention of one list."""
    head_dim, n_heads = vec.load_words(op, (F.head_dim, F.n_heads))
    take_queries(op, rows, room)
    store_spans(op, rows, room.spans)
    pos, _ = query_of(op, rows, 0)
    last_pos, _ = query_of(op, rows, rows.n - 1)
    seen = first_seen(op, pos)
    last = last_seen(op, last_pos)
    for chunk in range(seen // CHUNK, last // CHUNK + 1):
        first = max(chunk * CHUNK, seen - seen % 8)
        attend_chunk(cache, op, rows, room, first, min((chunk + 1) * CHUNK, last + 1))
    for row in range(rows.n):
        pos, head = query_of(op, rows, row)
        acc = room.joined + row * room.result_bytes
        out = vec.load_i64(op + F.out) + 4 * head_dim * ((pos - rows.start_pos) * n_heads + head)
        leave_joined(vec.splat_f32x8(vec.load_f32(acc + 4)), acc + 4 * HEADER, head_dim, out)


@inner
def attend_tokens(cache, op, thread, n_threads):
    """Prefill: lists of queries are dealt to the threads in turn; each is finished by the thread
    that began it.

    The record names a range of KV heads, so that one operation stays short.
    """
    step = vec.load_i64(op + F.step)
    room = scratch_of(op, thread)
    n_tokens, start_pos = vec.load_words(step, (STEP.n_tokens, STEP.start_pos))
    group = vec.load_i64(op + F.n_heads) // vec.load_i64(op + F.n_kv_heads)
    # a step of 0 would raise
    n_queries = n_tokens * group
    threads = max(n_threads, 1)
    n_lists = (n_queries + ROWS - 1) // ROWS
    n_lists += -n_lists % threads
    each = (n_queries + TILE_ROWS * n_lists - 1) // (TILE_ROWS * n_lists) * TILE_ROWS
    for kv_head in range(vec.load_i64(op + F.first_kv_head), vec.load_i64(op + F.end_kv_head)):
        for first in range(thread * each, n_queries, threads * max(each, 1)):
            rows = Rows(first, min(each, n_queries - first), kv_head, group, start_pos)
            attend_rows(cache, op, rows, room)
