"""Choice of experts: the ids and weights of each token's experts, from the router's logits.

Source: Shazeer et al. 2017, arXiv:1701.06538. logits [tokens, n_experts] f32 -> ids [tokens,
n_used] i32, weights [tokens, n_used] f32.

The chosen experts are always distinct and exist, even if logits are NaN: addresses are computed
from them.
"""

import math

import numpy as np

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import CHOOSE as F
from engine.kernels.records import SCORES
from engine.kernels.share import n_tokens_of

SIGMOID = SCORES.index("sigmoid")
SOFTMAX_OF_CHOSEN = SCORES.index("softmax of chosen")
LEAST_SUM = 6.103515625e-5
"""Lower limit of the sum that weights are divided by."""
MASKED = -math.inf


@inner
def softmax(x, n, out):
    """Compute the softmax of n f32; ``out`` may be ``x``."""
    top = vec.load_f32(x)
    for i in range(1, n):
        top = max(top, vec.load_f32(x + 4 * i))
    total = 0.0
    for i in range(n):
        power = math.exp(vec.load_f32(x + 4 * i) - top)
        total += power
        vec.store_f32(out + 4 * i, power)
    for i in range(n):
        vec.store_f32(out + 4 * i, vec.load_f32(out + 4 * i) / total)


@inner
def take_best(scores, n, taken_ids, n_taken):
    """Return the index of the largest of n f32 whose index is not in ``taken_ids`` (i32).

    Of equal scores the first wins.
    """
    best = -1
    best_score = np.float32(0.0)
    for i in range(n):
        score = vec.load_f32(scores + 4 * i)
        if best < 0 or score > best_score:
            is_free = True
            for k in range(n_taken):
                is_free = is_free and vec.load_i32(taken_ids + 4 * k) != i
            if is_free:
                best = i
                best_score = score
    return best


@inner
def mask_groups(scores, n, n_groups, n_used, scratch):
    """Set the scores of all but the best ``n_used`` groups to -infinity.

    A group is rated by the sum of its two best scores.
    """
    group_size = n // n_groups
    for g in range(n_groups):
        first = np.float32(MASKED)
        second = np.float32(MASKED)
        for i in range(group_size):
            score = vec.load_f32(scores + 4 * (g * group_size + i))
            if score > first:
                second = first
                first = score
            elif score > second:
                second = score
        vec.store_f32(scratch + 4 * g, first + second)
    chosen = scratch + 4 * n_groups
    for k in range(n_used):
        vec.store_i32(chosen + 4 * k, take_best(scratch, n_groups, chosen, k))
    for g in range(n_groups):
        is_used = False
        for k in range(n_used):
            is_used = is_used or vec.load_i32(chosen + 4 * k) == g
        if not is_used:
            for i in range(g * group_size, (g + 1) * group_size):
                vec.store_f32(scores + 4 * i, MASKED)


@inner
def choose(op, logits, ids, weights, scratch):
    """Choose the experts of one token; ``scratch`` holds 16 bytes for each expert."""
    n, n_used, score = vec.load_words(op, (F.n_experts, F.n_used, F.score))
    probabilities = scratch
    scores = scratch + 4 * n
    bias = vec.load_i64(op + F.bias)
    if score == SIGMOID:
        for i in range(n):
            vec.store_f32(
                probabilities + 4 * i, 1.0 / (1.0 + math.exp(-vec.load_f32(logits + 4 * i)))
            )
    elif score == SOFTMAX_OF_CHOSEN:
        for i in range(n):
            vec.store_f32(probabilities + 4 * i, vec.load_f32(logits + 4 * i))
    else:
        softmax(logits, n, probabilities)
    for i in range(n):
        value = vec.load_f32(probabilities + 4 * i)
        if bias != 0:
            value = value + vec.load_f32(bias + 4 * i)
        vec.store_f32(scores + 4 * i, value)
    if vec.load_i64(op + F.n_groups) > 1:
        mask_groups(
            scores,
            n,
            vec.load_i64(op + F.n_groups),
            vec.load_i64(op + F.n_groups_used),
            scratch + 8 * n,
        )
    for k in range(n_used):
        best = take_best(scores, n, ids, k)
        vec.store_i32(ids + 4 * k, best)
        vec.store_f32(weights + 4 * k, vec.load_f32(probabilities + 4 * best))
    if score == SOFTMAX_OF_CHOSEN:
        softmax(weights, n_used, weights)
    factor = vec.load_f64(op + F.scale)
    factors = vec.load_i64(op + F.factors)
    if vec.load_i64(op + F.renormalised) != 0:
        total = np.float32(0.0)
        for k in range(n_used):
            total += vec.load_f32(weights + 4 * k)
        if total < LEAST_SUM:
            total = np.float32(LEAST_SUM)
        factor = factor / total
    for k in range(n_used):
        weight = vec.load_f32(weights + 4 * k) * factor
        if factors != 0:
            weight = weight * vec.load_f32(factors + 4 * vec.load_i32(ids + 4 * k))
        vec.store_f32(weights + 4 * k, weight)


@kernel
def choose_experts(op, thread, n_threads):
    """Choose the experts of all tokens, which are dealt to the threads in turn.

    In decode the first thread has the only token and goes on with it alone.
    """
    n, n_used = vec.load_words(op, (F.n_experts, F.n_used))
    logits, ids, weights = vec.load_words(op, (F.logits, F.ids, F.weights))
    scratch = vec.load_i64(op + F.scratch) + thread * vec.load_i64(op + F.scratch_bytes)
    n_tokens = n_tokens_of(op)
    for t in range(thread, n_tokens, max(n_threads, 1)):  # a step of 0 would need an exception
        choose(op, logits + 4 * n * t, ids + 4 * n_used * t, weights + 4 * n_used * t, scratch)
