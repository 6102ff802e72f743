"""Softmax attention over the KV cache: operations that prefill (``attend_tokens.py``) and decode
(``attend_parts.py``) share.

out = softmax(cap(scale * q @ k) + slope * distance) @ v, all f32.

Positions are computed in fixed chunks. A chunk gives a query's maximum score, sum of weights and
unscaled result; the chunks are merged in order. The score of a query and a key is one sum in the
order of elements, an element of a chunk's result one sum in the order of positions. So a result
does not depend on the number of threads, on how many tokens are computed at once, or on the path:
prefill converts keys and values once for many queries, decode converts them as it reads them.

``cache_type.CacheLayout`` describes how a cache type (``kv_f16.py`` and others) stores keys and
values.
"""

from engine import simd as vec
from engine.jit import inner
from engine.kernels.exp import exp_lanes
from engine.kernels.records import CACHE as F
from engine.kernels.records import PARTIAL_HEADER as HEADER
from engine.kernels.records import STEP
from engine.kernels.scale import capped
from engine.machine.level import FEATURES, HAS_ARM64
from engine.simd.tile_sums import zero_unless_above

MASKED = -3e38
UNSCALED = 1 << 20
HAS_MANY_REGISTERS = HAS_ARM64 or "avx" in FEATURES
"""Whether registers hold the sums of six queries by sixteen keys."""


@inner
def row_bytes(cache, head_dim):
    """Return the bytes of one position of a head: key, key scales, value and value scales."""
    k_bits, k_block, _, v_bits, v_block, _ = cache
    k_scales = (head_dim + k_block - 1) // k_block
    v_scales = (head_dim + v_block - 1) // v_block
    return head_dim * k_bits >> 3, 4 * k_scales, head_dim * v_bits >> 3, 4 * v_scales


@inner
def cache_addresses(cache, op, kv_head, position):
    """Return the addresses of a position's key, key scales, value and value scales.

    Args:
        position: Multiple of eight; the rest of its chunk follows.
    """
    k_row, k_scale_row, v_row, v_scale_row = row_bytes(cache, vec.load_i64(op + F.head_dim))
    n_slots = vec.load_i64(op + F.n_slots)
    slot = kv_head * n_slots + position % n_slots
    return (
        vec.load_i64(op + F.k_cache) + slot * k_row,
        vec.load_i64(op + F.k_scales) + slot * k_scale_row,
        vec.load_i64(op + F.v_cache) + slot * v_row,
        vec.load_i64(op + F.v_scales) + slot * v_scale_row,
    )


@inner
def copy_query(op, query, target):
    """Copy a query of all tokens' heads, multiplied by the scale of scores."""
    head_dim = vec.load_i64(op + F.head_dim)
    factor = vec.splat_f32x8(vec.load_f64(op + F.scale))
    source = vec.load_i64(op + F.x) + 4 * head_dim * query
    for i in range(0, head_dim, 8):
        vec.store_f32x8(target + 4 * i, vec.fmul(vec.load_f32x8(source + 4 * i), factor))


@inner
def first_visible(op, pos):
    """Return the first position that a query at ``pos`` sees."""
    window = vec.load_i64(op + F.window)
    return max(0, pos + 1 - window) if window > 0 else 0


@inner
def last_visible(op, pos):
    """Return the last position that a query at ``pos`` sees.

    That is its own, or one of up to ``n_after`` positions after it in this step.
    """
    step = vec.load_i64(op + F.step)
    return min(
        pos + vec.load_i64(op + F.n_after),
        vec.load_i64(step + STEP.start_pos) + vec.load_i64(step + STEP.n_tokens) - 1,
    )


@inner
def cap_scores(scores, n, cap):
    """Apply the soft cap to n scores."""
    for i in range(0, n, 8):
        vec.store_f32x8(scores + 4 * i, capped(vec.load_f32x8(scores + 4 * i), cap))


@inner
def slant_scores(scores, n, slope, distance):
    """Add slope * distance to the scores of n positions (ALiBi, Press et al. 2021,
    arXiv:2108.12409).

    Args:
        distance: Distance of the first position from the query, negative or 0.
    """
    for i in range(n):
        vec.store_f32(scores + 4 * i, vec.load_f32(scores + 4 * i) + slope * (distance + i))


@inner
def weigh(op, head, pos, scores, first, end, result):
    """Turn the scores of a query at ``pos`` into softmax weights exp(score - maximum).

    Weights are 0 where the query does not see the position.

    Args:
        scores: Scores of positions first <= p < end; both are multiples of eight.
        result: Result of the chunk; its header gets the maximum and the sum.
    """
    n = end - first
    cap = vec.load_f64(op + F.soft_cap)
    slopes = vec.load_i64(op + F.slopes)
    if cap != 0.0:
        cap_scores(scores, n, cap)
    if slopes != 0:
        slant_scores(scores, n, vec.load_f32(slopes + 4 * head), first - pos)
    for i in range(min(n, first_visible(op, pos) - first)):
        vec.store_f32(scores + 4 * i, MASKED)
    for i in range(max(0, last_visible(op, pos) + 1 - first), n):
        vec.store_f32(scores + 4 * i, MASKED)
    masked = vec.splat_f32x8(MASKED)
    top = masked
    for i in range(0, n, 8):
        top = vec.fmax(vec.load_f32x8(scores + 4 * i), top)
    largest = vec.max_f32x8(top)
    minus = vec.splat_f32x8(largest)
    total = vec.splat_f32x8(0.0)
    for i in range(0, n, 8):
        score = vec.load_f32x8(scores + 4 * i)
        weight = zero_unless_above(exp_lanes(vec.fsub(score, minus)), score, masked)
        vec.store_f32x8(scores + 4 * i, weight)
        total = vec.fadd(total, weight)
    vec.store_f32(result, largest)
    vec.store_f32(result + 4, vec.sum_f32x8(total))


@inner
def begin_result(op, head, acc):
    """Clear ``acc`` and return the maximum and sum of an empty result.

    If the head has a sink, they are those of the sink: a score that counts in the sum alone.
    """
    sinks = vec.load_i64(op + F.sinks)
    zero = vec.splat_f32x8(0.0)
    for i in range(0, vec.load_i64(op + F.head_dim), 8):
        vec.store_f32x8(acc + 4 * i, zero)
    if sinks == 0:
        return vec.splat_f32x8(MASKED), zero
    return vec.splat_f32x8(vec.load_f32(sinks + 4 * head)), vec.splat_f32x8(1.0)


@inner
def merge_chunk(top, total, acc, result, head_dim):
    """Merge the result of a chunk into ``acc``; return the new maximum and sum."""
    chunk_top = vec.splat_f32x8(vec.load_f32(result))
    largest = vec.fmax(chunk_top, top)
    old_factor = exp_lanes(vec.fsub(top, largest))
    chunk_factor = exp_lanes(vec.fsub(chunk_top, largest))
    for i in range(0, head_dim, 8):
        values = vec.load_f32x8(result + 4 * (HEADER + i))
        vec.store_f32x8(
            acc + 4 * i,
            vec.fma(values, chunk_factor, vec.fmul(vec.load_f32x8(acc + 4 * i), old_factor)),
        )
    return largest, vec.fma(
        vec.splat_f32x8(vec.load_f32(result + 4)), chunk_factor, vec.fmul(total, old_factor)
    )


@inner
def finish_result(total, acc, head_dim, out):
    """Divide by the sum of weights; ``out`` may be ``acc``."""
    inverse = vec.splat_f32x8(1.0 / vec.max_f32x8(total))
    for i in range(0, head_dim, 8):
        vec.store_f32x8(out + 4 * i, vec.fmul(vec.load_f32x8(acc + 4 * i), inverse))
