"""Softmax attention over the cache, grouped by KV head: each cached row is read once for all queries that share it.

Positions are worked off in fixed chunks; a chunk leaves its maximum, its sum and its unscaled result, and chunks are
joined in order. So a result depends neither on the number of threads nor on how many tokens were fed at once. Decode
deals (head, chunk) pairs to the threads, prefill (token, head) pairs.

A cache type (``kv_f16.py`` and its like) supplies three functions and two numbers each for keys and values:
    load_k(tile, i) -> f32x8: element i of the tile's eight positions;
    scale_k(acc, at) -> f32x8: acc times the eight positions' scales, or acc where the type has none;
    load_v(row, i, scale_at) -> f32x8: eight elements of one position from i on, a multiple of 8, scaled;
    k_bits, v_bits: of one element; k_block, v_block: elements that share a scale (``UNSCALED`` where there is none).
"""

from engine.jit import inner
from engine.kernels.exp import exp_lanes
from engine.kernels.records import ATTENTION_CHUNK as CHUNK
from engine.kernels.records import CACHE as F
from engine.kernels.records import PARTIAL_HEADER as HEADER
from engine.kernels.records import STEP
from engine.kernels.scale import capped
from engine.kernels.share import share
from engine.simd import (
    fadd,
    fma,
    fmax,
    fsub,
    load_f32,
    load_f32x8,
    load_f64,
    load_i64,
    max_f32x8,
    prefetch_l2,
    splat_f32x8,
    store_f32,
    store_f32x8,
    sum_f32x8,
)

MASKED = -1e30
UNSCALED = 1 << 20
KEYS_AHEAD_BYTES = 8192
"""How far ahead keys are asked for; less was slower (PERFORMANCE.md)."""


@inner
def four_scores(load_k, scale_k, block, head_dim, q, k_tile, k_scales, factor, scores):
    """Four queries against a tile of eight cached keys."""
    h1, h2, h3 = q + 4 * head_dim, q + 8 * head_dim, q + 12 * head_dim
    s0, s1, s2, s3 = splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0)
    for start in range(0, head_dim, block):
        t0, t1, t2, t3 = splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0)
        u0, u1, u2, u3 = splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0)
        for i in range(start, min(start + block, head_dim), 2):
            k = load_k(k_tile, i)
            t0 = fma(splat_f32x8(load_f32(q + 4 * i)), k, t0)
            t1 = fma(splat_f32x8(load_f32(h1 + 4 * i)), k, t1)
            t2 = fma(splat_f32x8(load_f32(h2 + 4 * i)), k, t2)
            t3 = fma(splat_f32x8(load_f32(h3 + 4 * i)), k, t3)
            k = load_k(k_tile, i + 1)
            u0 = fma(splat_f32x8(load_f32(q + 4 * i + 4)), k, u0)
            u1 = fma(splat_f32x8(load_f32(h1 + 4 * i + 4)), k, u1)
            u2 = fma(splat_f32x8(load_f32(h2 + 4 * i + 4)), k, u2)
            u3 = fma(splat_f32x8(load_f32(h3 + 4 * i + 4)), k, u3)
        at = k_scales + 32 * (start // block)
        s0 = fadd(s0, scale_k(fadd(t0, u0), at))
        s1 = fadd(s1, scale_k(fadd(t1, u1), at))
        s2 = fadd(s2, scale_k(fadd(t2, u2), at))
        s3 = fadd(s3, scale_k(fadd(t3, u3), at))
    by = splat_f32x8(factor)
    store_scores(scores, s0, by)
    store_scores(scores + 4 * CHUNK, s1, by)
    store_scores(scores + 8 * CHUNK, s2, by)
    store_scores(scores + 12 * CHUNK, s3, by)


@inner
def one_score(load_k, scale_k, block, head_dim, q, k_tile, k_scales, factor, scores):
    """One query against a tile of eight cached keys, in the order of ``four_scores``."""
    s = splat_f32x8(0.0)
    for start in range(0, head_dim, block):
        t, u = splat_f32x8(0.0), splat_f32x8(0.0)
        for i in range(start, min(start + block, head_dim), 2):
            t = fma(splat_f32x8(load_f32(q + 4 * i)), load_k(k_tile, i), t)
            u = fma(splat_f32x8(load_f32(q + 4 * i + 4)), load_k(k_tile, i + 1), u)
        s = fadd(s, scale_k(fadd(t, u), k_scales + 32 * (start // block)))
    store_scores(scores, s, splat_f32x8(factor))


@inner
def store_scores(scores, s, factor):
    """Write eight scores, scaled."""
    store_f32x8(scores, fma(s, factor, splat_f32x8(0.0)))


@inner
def cap_scores(scores, n, cap):
    """Apply the soft cap to n scores."""
    for i in range(0, n, 8):
        store_f32x8(scores + 4 * i, capped(load_f32x8(scores + 4 * i), cap))


@inner
def slant_scores(scores, n, slope, distance):
    """Add slope times how far each of n positions lies from the query (ALiBi, Press et al. 2021, arXiv:2108.12409).

    Args:
        distance: of the first position, negative or 0.
    """
    for i in range(n):
        store_f32(scores + 4 * i, load_f32(scores + 4 * i) + slope * (distance + i))


@inner
def softmax_chunk(scores, n, hidden, partial):
    """Softmax weights exp(score - maximum) of n scores; leaves maximum and sum in the partial result's header.

    Args:
        hidden: number of first scores that are masked, below eight: they lie before the window.
    """
    tiles = (n + 7) // 8 * 8
    for i in range(hidden):
        store_f32(scores + 4 * i, MASKED)
    for i in range(n, tiles):
        store_f32(scores + 4 * i, MASKED)
    top = splat_f32x8(MASKED)
    for i in range(0, tiles, 8):
        top = fmax(load_f32x8(scores + 4 * i), top)
    largest = max_f32x8(top)
    minus, total = splat_f32x8(largest), splat_f32x8(0.0)
    for i in range(0, tiles, 8):
        weight = exp_lanes(fsub(load_f32x8(scores + 4 * i), minus))
        store_f32x8(scores + 4 * i, weight)
        total = fadd(total, weight)
    store_f32(partial, largest)
    store_f32(partial + 4, sum_f32x8(total))


@inner
def four_values(load_v, row_bytes, first, n, weights, values, v_scales, scale_row, partial, partial_step):
    """Sixteen elements from ``first`` on of the results of four heads: sum over n positions of weight times value.

    ``values`` is the address of the first position, ``v_scales`` that of its scale of these elements.
    """
    a0, a1, a2, a3 = splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0)
    b0, b1, b2, b3 = splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0)
    for i in range(n):
        at, scale_at = values + i * row_bytes, v_scales + i * scale_row
        low, high = load_v(at, first, scale_at), load_v(at, first + 8, scale_at)
        w = splat_f32x8(load_f32(weights + 4 * i))
        a0, b0 = fma(w, low, a0), fma(w, high, b0)
        w = splat_f32x8(load_f32(weights + 4 * (CHUNK + i)))
        a1, b1 = fma(w, low, a1), fma(w, high, b1)
        w = splat_f32x8(load_f32(weights + 4 * (2 * CHUNK + i)))
        a2, b2 = fma(w, low, a2), fma(w, high, b2)
        w = splat_f32x8(load_f32(weights + 4 * (3 * CHUNK + i)))
        a3, b3 = fma(w, low, a3), fma(w, high, b3)
    store_pair(partial, a0, b0)
    store_pair(partial + partial_step, a1, b1)
    store_pair(partial + 2 * partial_step, a2, b2)
    store_pair(partial + 3 * partial_step, a3, b3)


@inner
def store_pair(at, low, high):
    """Write sixteen f32."""
    store_f32x8(at, low)
    store_f32x8(at + 32, high)


@inner
def one_value(load_v, row_bytes, first, n, weights, values, v_scales, scale_row, partial):
    """Eight elements from ``first`` on of one head's result, in the order of ``four_values``."""
    acc = splat_f32x8(0.0)
    for i in range(n):
        v = load_v(values + i * row_bytes, first, v_scales + i * scale_row)
        acc = fma(splat_f32x8(load_f32(weights + 4 * i)), v, acc)
    store_f32x8(partial, acc)


@inner
def first_seen(op, pos):
    """The first position that a query at ``pos`` sees."""
    window = load_i64(op + F.window)
    return max(0, pos + 1 - window) if window > 0 else 0


@inner
def ask_lines(at, n_bytes):
    """Ask for the cache lines of ``n_bytes`` into the second level."""
    for line in range(0, n_bytes, 64):
        prefetch_l2(at + line)


@inner
def attend_chunk(cache, asks, op, group, q, kv_head, pos, seen, end, scores, partial, partial_step):
    """Attend to positions seen <= p < end, which lie in one chunk, with all queries of one KV head.

    Args:
        cache: (k_bits, k_block, load_k, scale_k, v_bits, v_block, load_v); numba warns where functions come first.
        asks: to ask memory for the values while the keys are read, and for the keys ahead.
        q: address of the group's first query.
        pos: position of the queries.
        partial: where the first head's partial result goes; the others' lie ``partial_step`` bytes apart.
    """
    k_bits, k_block, load_k, scale_k, v_bits, v_block, load_v = cache
    head_dim, factor = load_i64(op + F.head_dim), load_f64(op + F.scale)
    k_row, v_row = head_dim * k_bits >> 3, head_dim * v_bits >> 3
    k_scale_row, v_scale_row = 4 * ((head_dim + k_block - 1) // k_block), 4 * ((head_dim + v_block - 1) // v_block)
    start, n_slots = seen - seen % 8, load_i64(op + F.n_slots)
    n, quads, slot = end - start, group - group % 4, kv_head * n_slots + start % n_slots
    keys, k_scales = load_i64(op + F.k_cache) + slot * k_row, load_i64(op + F.k_scales) + slot * k_scale_row
    values, v_scales = load_i64(op + F.v_cache) + slot * v_row, load_i64(op + F.v_scales) + slot * v_scale_row
    for p in range(0, n, 8):
        tile, tile_scales = keys + p * k_row, k_scales + p * k_scale_row
        at = scores + 4 * p
        if asks:
            ask_lines(tile + KEYS_AHEAD_BYTES, 8 * k_row)
            ask_lines(values + p * v_row, 8 * v_row)
        for h in range(0, quads, 4):
            four_scores(
                load_k, scale_k, k_block, head_dim, q + 4 * h * head_dim, tile, tile_scales, factor, at + 4 * CHUNK * h
            )
        for h in range(quads, group):
            one_score(
                load_k, scale_k, k_block, head_dim, q + 4 * h * head_dim, tile, tile_scales, factor, at + 4 * CHUNK * h
            )
    cap, slopes = load_f64(op + F.soft_cap), load_i64(op + F.slopes)
    for h in range(group):
        if cap != 0.0:
            cap_scores(scores + 4 * CHUNK * h, n, cap)
        if slopes != 0:
            slant_scores(scores + 4 * CHUNK * h, n, load_f32(slopes + 4 * (kv_head * group + h)), start - pos)
        softmax_chunk(scores + 4 * CHUNK * h, n, seen - start, partial + h * partial_step)
    whole = head_dim - head_dim % 16
    for h in range(0, quads, 4):
        for i in range(0, whole, 16):
            four_values(
                load_v, v_row, i, n, scores + 4 * CHUNK * h, values, v_scales + 4 * (i // v_block), v_scale_row,
                partial + h * partial_step + 4 * (HEADER + i), partial_step,
            )  # fmt: skip
    for h in range(group):
        for i in range(0 if h >= quads else whole, head_dim, 8):
            one_value(
                load_v, v_row, i, n, scores + 4 * CHUNK * h, values, v_scales + 4 * (i // v_block), v_scale_row,
                partial + h * partial_step + 4 * (HEADER + i),
            )  # fmt: skip


@inner
def join_chunks(partial, n_chunks, head_dim, sink, out):
    """Join one head's partial results, in order, and divide by the sum of weights.

    Args:
        sink: address of a score more that weighs in the sum alone, or 0.
    """
    step = 4 * (HEADER + head_dim)
    top = splat_f32x8(MASKED if sink == 0 else load_f32(sink))
    for c in range(n_chunks):
        top = fmax(splat_f32x8(load_f32(partial + c * step)), top)
    total = splat_f32x8(0.0)
    for c in range(n_chunks):
        weight = exp_lanes(fsub(splat_f32x8(load_f32(partial + c * step)), top))
        total = fma(weight, splat_f32x8(load_f32(partial + c * step + 4)), total)
    if sink != 0:
        total = fadd(total, exp_lanes(fsub(splat_f32x8(load_f32(sink)), top)))
    inverse = splat_f32x8(1.0 / max_f32x8(total))
    for i in range(0, head_dim, 8):
        acc = splat_f32x8(0.0)
        for c in range(n_chunks):
            weight = exp_lanes(fsub(splat_f32x8(load_f32(partial + c * step)), top))
            acc = fma(weight, load_f32x8(partial + c * step + 4 * (HEADER + i)), acc)
        store_f32x8(out + 4 * i, fma(acc, inverse, splat_f32x8(0.0)))


@inner
def sink_of(op, head):
    """Address of a head's sink, or 0 where the layer has none."""
    sinks = load_i64(op + F.sinks)
    return sinks + 4 * head if sinks != 0 else 0


@inner
def attend_parts(cache, op, thread, n_threads):
    """Decode, first half: (KV head, chunk) pairs of one token; partial results go to ``out``.

    A thread's pairs follow each other in memory, so that what it asks for ahead is what it reads next.
    """
    pos = load_i64(load_i64(op + F.step) + STEP.start_pos)
    n_heads, n_kv_heads = load_i64(op + F.n_heads), load_i64(op + F.n_kv_heads)
    head_dim, max_chunks = load_i64(op + F.head_dim), load_i64(op + F.max_chunks)
    group, part_bytes = n_heads // n_kv_heads, 4 * (HEADER + head_dim)
    scores = load_i64(op + F.scratch) + thread * load_i64(op + F.scratch_bytes)
    seen = first_seen(op, pos)
    first_chunk, n_chunks = seen // CHUNK, (pos + CHUNK) // CHUNK - seen // CHUNK
    first_item, end_item = share(n_chunks * n_kv_heads, 1, thread, n_threads)
    for item in range(first_item, end_item):
        kv_head, chunk = item // n_chunks, item % n_chunks
        head = kv_head * group
        partial = load_i64(op + F.out) + (head * max_chunks + chunk) * part_bytes
        q = load_i64(op + F.x) + 4 * head * head_dim
        start = max(seen, (first_chunk + chunk) * CHUNK)
        end = min((first_chunk + chunk + 1) * CHUNK, pos + 1)
        attend_chunk(cache, True, op, group, q, kv_head, pos, start, end, scores, partial, max_chunks * part_bytes)


@inner
def attend_tokens(cache, op, thread, n_threads):
    """Prefill: (KV head, token) pairs, dealt in turn; each is finished by the thread that began it.

    The record names a range of KV heads, so that one operation stays short.
    """
    step = load_i64(op + F.step)
    n_tokens, start_pos = load_i64(step + STEP.n_tokens), load_i64(step + STEP.start_pos)
    n_heads, n_kv_heads = load_i64(op + F.n_heads), load_i64(op + F.n_kv_heads)
    head_dim, max_chunks = load_i64(op + F.head_dim), load_i64(op + F.max_chunks)
    group, part_bytes = n_heads // n_kv_heads, 4 * (HEADER + head_dim)
    scores = load_i64(op + F.scratch) + thread * load_i64(op + F.scratch_bytes)
    partial = scores + 4 * CHUNK * group
    first_item, end_item = load_i64(op + F.first_kv_head) * n_tokens, load_i64(op + F.end_kv_head) * n_tokens
    for item in range(first_item + thread, end_item, max(n_threads, 1)):  # a step of 0 would raise
        kv_head, t = item // n_tokens, item % n_tokens
        first, pos = (t * n_heads + kv_head * group) * head_dim, start_pos + t
        seen = first_seen(op, pos)
        first_chunk, n_chunks = seen // CHUNK, (pos + CHUNK) // CHUNK - seen // CHUNK
        for chunk in range(n_chunks):
            attend_chunk(
                cache, False, op, group, load_i64(op + F.x) + 4 * first, kv_head, pos,
                max(seen, (first_chunk + chunk) * CHUNK),
                min((first_chunk + chunk + 1) * CHUNK, pos + 1), scores, partial + chunk * part_bytes,
                max_chunks * part_bytes,
            )  # fmt: skip
        for h in range(group):
            out = load_i64(op + F.out) + 4 * (first + h * head_dim)
            sink = sink_of(op, kv_head * group + h)
            join_chunks(partial + h * max_chunks * part_bytes, n_chunks, head_dim, sink, out)
