"""Softmax attention over the cache: what prompts (``attend_tokens.py``) and decode
(``attend_parts.py``) share.

Positions are worked off in fixed chunks; a chunk leaves a query's maximum, its sum and its unscaled
result, and chunks are joined in order. The score of a query and a key is one sum in the order of
elements, an element of a chunk's result one sum in the order of positions. So a result depends
neither on the number of threads, nor on how many tokens were fed at once, nor on the path: prompts
convert keys and values once for many queries, decode as it reads them.

A cache type (``kv_f16.py`` and its like) says how its keys and values are kept:
``cache_type.CacheLayout``.
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
    """Bytes of one position of a head: of its key, the key's scales, its value, the value's
    scales."""
    k_bits, k_block, _, v_bits, v_block, _ = cache
    k_scales = (head_dim + k_block - 1) // k_block
    v_scales = (head_dim + v_block - 1) // v_block
    return head_dim * k_bits >> 3, 4 * k_scales, head_dim * v_bits >> 3, 4 * v_scales


@inner
def places(cache, op, kv_head, position):
    """Where a position's key, the key's scales, value and the value's scales are.

    Args:
        position: a multiple of eight; the rest of its chunk follows.
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
def take_query(op, query, to):
    """Copy a query of all tokens' heads, times the factor of scores."""
    head_dim = vec.load_i64(op + F.head_dim)
    factor = vec.splat_f32x8(vec.load_f64(op + F.scale))
    at = vec.load_i64(op + F.x) + 4 * head_dim * query
    for i in range(0, head_dim, 8):
        vec.store_f32x8(to + 4 * i, vec.fmul(vec.load_f32x8(at + 4 * i), factor))


@inner
def first_seen(op, pos):
    """The first position that a query at ``pos`` sees."""
    window = vec.load_i64(op + F.window)
    return max(0, pos + 1 - window) if window > 0 else 0


@inner
def last_seen(op, pos):
    """The last position that a query at ``pos`` sees: its own, or one after it that the step
    has."""
    step = vec.load_i64(op + F.step)
    return min(
        pos + vec.load_i64(op + F.after),
        vec.load_i64(step + STEP.start_pos) + vec.load_i64(step + STEP.n_tokens) - 1,
    )


@inner
def cap_scores(scores, n, cap):
    """Apply the soft cap to n scores."""
    for i in range(0, n, 8):
        vec.store_f32x8(scores + 4 * i, capped(vec.load_f32x8(scores + 4 * i), cap))


@inner
def slant_scores(scores, n, slope, distance):
    """Add slope times how far each of n positions is from the query (ALiBi, Press et al. 2021,
    arXiv:2108.12409).

    Args:
        distance: of the first position, negative or 0.
    """
    for i in range(n):
        vec.store_f32(scores + 4 * i, vec.load_f32(scores + 4 * i) + slope * (distance + i))


@inner
def weigh(op, head, pos, scores, first, end, result):
    """Make scores of a query at ``pos`` softmax weights exp(score - maximum), 0 where it does not
    see the position.

    Args:
        scores: of positions first <= p < end; both are multiples of eight.
        result: its header gets maximum and sum.
    """
    n = end - first
    cap = vec.load_f64(op + F.soft_cap)
    slopes = vec.load_i64(op + F.slopes)
    if cap != 0.0:
        cap_scores(scores, n, cap)
    if slopes != 0:
        slant_scores(scores, n, vec.load_f32(slopes + 4 * head), first - pos)
    for i in range(min(n, first_seen(op, pos) - first)):
        vec.store_f32(scores + 4 * i, MASKED)
    for i in range(max(0, last_seen(op, pos) + 1 - first), n):
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
def begin_joined(op, head, acc):
    """Clear ``acc``; maximum and sum of no chunk, or of the head's sink, a score that weighs in the
    sum alone."""
    sinks = vec.load_i64(op + F.sinks)
    zero = vec.splat_f32x8(0.0)
    for i in range(0, vec.load_i64(op + F.head_dim), 8):
        vec.store_f32x8(acc + 4 * i, zero)
    if sinks == 0:
        return vec.splat_f32x8(MASKED), zero
    return vec.splat_f32x8(vec.load_f32(sinks + 4 * head)), vec.splat_f32x8(1.0)


@inner
def join_chunk(top, total, acc, result, head_dim):
    """Join one more chunk's result to maximum, sum and ``acc``; returns the two."""
    more = vec.splat_f32x8(vec.load_f32(result))
    largest = vec.fmax(more, top)
    kept = exp_lanes(vec.fsub(top, largest))
    added = exp_lanes(vec.fsub(more, largest))
    for i in range(0, head_dim, 8):
        part = vec.load_f32x8(result + 4 * (HEADER + i))
        vec.store_f32x8(
            acc + 4 * i, vec.fma(part, added, vec.fmul(vec.load_f32x8(acc + 4 * i), kept))
        )
    return largest, vec.fma(vec.splat_f32x8(vec.load_f32(result + 4)), added, vec.fmul(total, kept))


@inner
def leave_joined(total, acc, head_dim, out):
    """Divide by the sum of weights; ``out`` may be ``acc``."""
    inverse = vec.splat_f32x8(1.0 / vec.max_f32x8(total))
    for i in range(0, head_dim, 8):
        vec.store_f32x8(out + 4 * i, vec.fmul(vec.load_f32x8(acc + 4 * i), inverse))
