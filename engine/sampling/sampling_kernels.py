"""Compiled sampling: logits in, one token id out. No Python objects, no GIL."""

import math

import numpy as np

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import DRAW, LOGITS
from engine.sampling.candidate_kernels import (
    BINS,
    cut,
    cut_typical,
    exclude_top_choices,
    gather,
    gather_largest,
    keep_at_least,
    largest,
    spread,
    weigh,
)

HEAP_LIMIT = 1024
"""Largest top_k for which the largest logits are in a heap; beyond it they are found by bins."""
SEARCHED = 2048
"""Logits among which the largest is searched for one by one."""
REACH = 87.0
"""Distance from the likeliest token beyond which a probability is below the range of float32.

It holds at temperatures up to 1. So tokens that a form or the user forbids are never candidates,
whatever the settings.
"""
FORBIDDEN_DISTANCE = 1e6
"""Distance from the likeliest token beyond which a token is forbidden: models have no such
logits."""


@kernel
def largest_logit(op, thread, n_threads):
    """Find the index of the largest logit, the first of equals; -1 if any is NaN or infinite."""
    logits = vec.array_f32(vec.load_i64(op + LOGITS.logits), vec.load_i64(op + LOGITS.n))
    vec.store_i64(op + LOGITS.result, find_largest(logits))


@inner
def find_largest(logits):
    """Return the index of the largest logit, see ``largest_logit``.

    Args:
        logits: (vocab_size,) float32.
    """
    n = logits.shape[0]
    best = np.float32(-np.inf)
    best_begin = 0
    for begin in range(0, n, SEARCHED):
        top, is_broken = largest(logits[begin : min(begin + SEARCHED, n)])
        if is_broken:
            return -1
        if top > best:
            best = top
            best_begin = begin
    index = best_begin
    while logits[index] != best:
        index += 1
    return index


@kernel
def copy_logits(op, thread, n_threads):
    """Copy logits; the result is 0 if any is NaN or infinite, else 1."""
    n = vec.load_i64(op + LOGITS.n)
    source = vec.load_i64(op + LOGITS.logits)
    target = vec.load_i64(op + LOGITS.out)
    zero = vec.splat_f32x8(0.0)
    broken = vec.splat_f32x8(0.0)
    n_in_eights = n // 8 * 8
    for i in range(0, n_in_eights, 8):
        x = vec.load_f32x8(source + 4 * i)
        vec.store_f32x8(target + 4 * i, x)
        broken = vec.fma(x, zero, broken)
    # NaN and infinity times 0 are NaN, and NaN is not equal to 0
    is_broken = vec.sum_f32x8(broken) != 0.0
    for i in range(n_in_eights, n):
        x = vec.load_f32(source + 4 * i)
        vec.store_f32(target + 4 * i, x)
        is_broken |= not abs(x) < np.inf
    vec.store_i64(op + LOGITS.result, not is_broken)


@inner
def next_uniform(state):
    """Return a number in [0, 1) and advance the state: SplitMix64 (Steele, Lea and Flood 2014).

    Args:
        state: (1,) uint64.
    """
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0


@inner
def largest_of(value, n):
    """Return the index of the largest of n candidates, the first of equals."""
    best = 0
    for i in range(1, n):
        if value[i] > value[best]:
            best = i
    return best


@kernel
def draw(op, thread, n_threads):
    """Draw a token, see ``draw_token``."""
    n = vec.load_i64(op + DRAW.n)
    row = n + 8
    floats = vec.load_i64(op + DRAW.floats)
    ints = vec.load_i64(op + DRAW.ints)
    token = draw_token(
        vec.array_f32(vec.load_i64(op + DRAW.logits), n),
        vec.load_f64(op + DRAW.temperature),
        vec.load_i64(op + DRAW.top_k),
        vec.load_f64(op + DRAW.top_p),
        vec.load_f64(op + DRAW.min_p),
        vec.load_f64(op + DRAW.top_n_sigma),
        vec.load_f64(op + DRAW.typical_p),
        vec.load_f64(op + DRAW.xtc_probability),
        vec.load_f64(op + DRAW.xtc_threshold),
        vec.array_u64(vec.load_i64(op + DRAW.state), 1),
        (
            vec.array_f32(floats, row),
            vec.array_f32(floats + 4 * row, row),
            vec.array_f32(floats + 8 * row, row),
        ),
        (vec.array_i32(ints, row), vec.array_i32(ints + 4 * row, row)),
        vec.array_f64(vec.load_i64(op + DRAW.mass), BINS),
    )
    vec.store_i64(op + DRAW.result, token)


@inner
def draw_token(
    logits,
    temperature,
    top_k,
    top_p,
    min_p,
    top_n_sigma,
    typical_p,
    xtc_probability,
    xtc_threshold,
    state,
    floats,
    ints,
    mass,
):
    """Draw a token.

    The samplers top-n-sigma, top-k, typical, top-p, min-p and XTC each cut down the candidates that
    the previous one has kept; then a token is drawn at the temperature.

    Args:
        logits: (vocab_size,) float32.
        temperature: 0 takes the likeliest candidate.
        top_k: Limit on the candidates, 1 to vocab_size.
        top_p, typical_p: Share of probability to keep; 1 keeps all.
        min_p: Least probability relative to the likeliest; 0 keeps all.
        top_n_sigma: Standard deviations of the logits below the largest to keep; 0 keeps all.
        xtc_probability, xtc_threshold: how often the likeliest are dropped, and from which
        probability on.
        state: (1,) uint64, the generator's; advanced by one draw, by two with XTC.
        floats, ints: three of (vocab_size + 8,) float32 and two of int32, overwritten.
        mass: (BINS,) float64, overwritten.

    Returns:
        Token id, or -1 if a logit is NaN or infinite.
    """
    value = floats[0]
    weight = floats[1]
    key = floats[2]
    index = ints[0]
    members = ints[1]
    top, is_broken = largest(logits)
    if is_broken:
        return -1
    least = top - REACH * max(temperature, 1.0)
    if top_n_sigma > 0.0:
        least = max(least, top - top_n_sigma * spread(logits, top, FORBIDDEN_DISTANCE))
    log_min_p = math.log(min_p) if min_p > 0.0 else -np.inf
    if typical_p >= 1.0 and top_p >= 1.0:
        least = max(least, top + log_min_p)
    if top_k <= HEAP_LIMIT:
        gather_largest(logits, top_k, value, index)
        n = keep_at_least(least, value, weight, index, top_k)
    else:
        n = gather(logits, least, value, index)
        if n > top_k:
            weight[:n] = 1.0
            n = cut(value, value, weight, index, n, float(top_k), members, mass)
    if typical_p < 1.0:
        n = cut_typical(value, weight, key, index, n, top, typical_p, members, mass)
        top = value[largest_of(value, n)]
    if top_p < 1.0:
        mass_limit = top_p * weigh(value, weight, n, top, 1.0)
        # Min-p before top-p: the result is the same, and min-p is cheaper.
        n = keep_at_least(top + log_min_p, value, weight, index, n)
        n = cut(value, value, weight, index, n, mass_limit, members, mass)
    elif typical_p < 1.0:
        n = keep_at_least(top + log_min_p, value, weight, index, n)
    if (
        xtc_probability > 0.0
        and xtc_threshold <= 0.5
        and n > 1
        and next_uniform(state) <= xtc_probability
    ):
        n = exclude_top_choices(value, weight, index, n, top, xtc_threshold)
        top = value[largest_of(value, n)]
    if temperature == 0.0:
        return index[largest_of(value, n)]
    threshold = next_uniform(state) * weigh(value, weight, n, top, 1.0 / temperature)
    for i in range(n):
        threshold -= weight[i]
        if threshold < 0.0:
            return index[i]
    return index[n - 1]
