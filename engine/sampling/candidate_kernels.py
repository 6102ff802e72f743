"""Candidates for the next token, gathered from the logits and cut down without sorting a
vocabulary.

Candidate i is ``value[i]``, its logit, and ``index[i]``, its token id. All arrays are eight numbers
longer than the logits, since weights are computed eight at a time.
"""

import math

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.exp import exp_lanes

PIECE = 256
"""Logits of a piece: one pass over a piece decides whether its logits are examined one by one."""
BINS = 256
"""Bins into which ``cut`` divides the keys in a round."""
LOWEST = np.float32(-3e38)


@inner
def largest(logits):
    """Return the largest of (n,) logits, and whether any is NaN or infinite."""
    address = logits.ctypes.data
    n = logits.shape[0]
    zero = vec.splat_f32x8(0.0)
    # Two registers each, so that no addition waits for the one before it.
    tops = vec.splat_f32x8(-np.inf)
    other_tops = tops
    broken = zero
    other_broken = zero
    n_in_pairs = n // 16 * 16
    for i in range(0, n_in_pairs, 16):
        x = vec.load_f32x8(address + 4 * i)
        y = vec.load_f32x8(address + 4 * i + 32)
        tops = vec.fmax(x, tops)
        other_tops = vec.fmax(y, other_tops)
        broken = vec.fma(x, zero, broken)
        other_broken = vec.fma(y, zero, other_broken)
    # NaN and infinity times 0 are NaN, and NaN is not equal to 0
    top = vec.max_f32x8(vec.fmax(tops, other_tops))
    is_broken = vec.sum_f32x8(vec.fadd(broken, other_broken)) != 0.0
    for i in range(n_in_pairs, n):
        top = max(top, logits[i])
        is_broken |= not abs(logits[i]) < np.inf
    return top, is_broken


@inner
def has_at_least(logits, least):
    """Return whether any logit is at least ``least``, without a branch per logit."""
    address = logits.ctypes.data
    n = logits.shape[0]
    tops = vec.splat_f32x8(-np.inf)
    other_tops = tops
    n_in_pairs = n // 16 * 16
    for i in range(0, n_in_pairs, 16):
        tops = vec.fmax(vec.load_f32x8(address + 4 * i), tops)
        other_tops = vec.fmax(vec.load_f32x8(address + 4 * i + 32), other_tops)
    top = vec.max_f32x8(vec.fmax(tops, other_tops))
    for i in range(n_in_pairs, n):
        top = max(top, logits[i])
    return top >= least


@inner
def spread(logits, top, deepest):
    """Return the standard deviation of the logits.

    Forbidden logits, ``deepest`` below the largest, are left out.
    """
    n = 0
    total = 0.0
    squares = 0.0
    for i in range(logits.shape[0]):
        x = float(logits[i]) - top
        if x > -deepest:
            n += 1
            total += x
            squares += x * x
    mean = total / n
    return math.sqrt(max(0.0, squares / n - mean * mean))


@inner
def gather(logits, least, value, index):
    """Take the logits from ``least`` on as candidates, in the order of their ids; return their
    number."""
    n = 0
    for begin in range(0, logits.shape[0], PIECE):
        end = min(begin + PIECE, logits.shape[0])
        if has_at_least(logits[begin:end], least):
            for i in range(begin, end):
                if logits[i] >= least:
                    value[n] = logits[i]
                    index[n] = i
                    n += 1
    return n


@inner
def sift_down(heap_value, heap_index, n, start):
    """Restore a heap whose smallest value is at the root."""
    parent = start
    while True:
        child = 2 * parent + 1
        if child >= n:
            return
        if child + 1 < n and heap_value[child + 1] < heap_value[child]:
            child += 1
        if heap_value[parent] <= heap_value[child]:
            return
        heap_value[parent], heap_value[child] = heap_value[child], heap_value[parent]
        heap_index[parent], heap_index[child] = heap_index[child], heap_index[parent]
        parent = child


@inner
def gather_largest(logits, k, value, index):
    """Take the k largest logits as candidates, in descending order: fast for a small k."""
    for i in range(k):
        value[i] = logits[i]
        index[i] = i
    for start in range(k // 2 - 1, -1, -1):
        sift_down(value, index, k, start)
    for begin in range(0, logits.shape[0], PIECE):
        end = min(begin + PIECE, logits.shape[0])
        if has_at_least(logits[begin:end], value[0]):
            for i in range(max(begin, k), end):
                if logits[i] > value[0]:
                    value[0] = logits[i]
                    index[0] = i
                    sift_down(value, index, k, 0)
    for n in range(k - 1, 0, -1):
        value[0], value[n] = value[n], value[0]
        index[0], index[n] = index[n], index[0]
        sift_down(value, index, n, 0)


@inner
def keep_at_least(least, value, weight, index, n):
    """Keep the candidates whose logit is at least ``least``; return their number."""
    n_kept = 0
    for i in range(n):
        if value[i] >= least:
            value[n_kept], weight[n_kept], index[n_kept] = value[i], weight[i], index[i]
            n_kept += 1
    return n_kept


@inner
def weigh(value, weight, n, top, factor):
    """Write weight = exp((value - top) * factor) of n candidates; return the sum."""
    for i in range(n, (n + 7) // 8 * 8):
        value[i] = LOWEST
    values = value.ctypes.data
    weights = weight.ctypes.data
    highest = vec.splat_f32x8(top)
    factors = vec.splat_f32x8(factor)
    total = 0.0
    for begin in range(0, n, PIECE):
        piece = vec.splat_f32x8(0.0)
        for i in range(begin, min(begin + PIECE, n), 8):
            lanes = exp_lanes(vec.fmul(vec.fsub(vec.load_f32x8(values + 4 * i), highest), factors))
            vec.store_f32x8(weights + 4 * i, lanes)
            piece = vec.fadd(piece, lanes)
        total += float(vec.sum_f32x8(piece))
    return total


@inner
def cut(key, value, weight, index, n, mass_limit, members, mass):
    """Keep the candidates with the largest keys until their weights reach ``mass_limit``; return
    their number.

    The smallest kept key is found in rounds: the keys are divided into bins, and the bin where the
    sum of weights reaches the limit is divided in the next round. Of equal keys the first ones are
    kept.



    Args:
        key: (n,) float32, any numbers; may be ``value``.
        members: (n,) int32, overwritten: candidates of the round.
        mass: (BINS,) float64, overwritten: weight of each bin.
    """
    for i in range(n):
        members[i] = i
    m = n
    reached = 0.0
    while True:
        low = high = key[members[0]]
        for j in range(1, m):
            low = min(low, key[members[j]])
            high = max(high, key[members[j]])
        if low == high:
            break
        scale = (BINS - 0.5) / (
            float(high) - float(low)
        )  # the largest key is in the last bin, however it is rounded
        mass[:] = 0.0
        for j in range(m):
            mass[int((float(key[members[j]]) - float(low)) * scale)] += weight[members[j]]
        chosen = BINS - 1
        while chosen > 0 and reached + mass[chosen] < mass_limit:
            reached += mass[chosen]
            chosen -= 1
        inside = 0
        for j in range(m):
            if int((float(key[members[j]]) - float(low)) * scale) == chosen:
                members[inside] = members[j]
                inside += 1
        m = inside
    last = key[members[0]]
    n_equal = 0
    while n_equal < m:
        reached += weight[members[n_equal]]
        n_equal += 1
        if reached >= mass_limit:
            break
    n_kept = 0
    for i in range(n):
        is_equal = key[i] == last
        if key[i] > last or (is_equal and n_equal > 0):
            n_equal -= is_equal
            value[n_kept], weight[n_kept], index[n_kept] = value[i], weight[i], index[i]
            n_kept += 1
    return n_kept


@inner
def next_above(x):
    """Return the next float64 above a positive one.

    The sum is rounded to the next number.
    """
    return x + x * 1.6653345369377348e-16


@inner
def cut_typical(value, weight, key, index, n, top, share, members, mass):
    """Keep the candidates whose information is nearest to the expected one; return their number.

    Source: Meister et al. 2022, arXiv:2202.00666. Nearest to the entropy is nearest to the mean
    logit.
    """
    total = weigh(value, weight, n, top, 1.0)
    mean = 0.0
    for i in range(n):
        mean += weight[i] * float(value[i] - top)
    mean /= total
    for i in range(n):
        key[i] = -abs(float(value[i] - top) - mean)
    return cut(key, value, weight, index, n, next_above(share * total), members, mass)


@inner
def exclude_top_choices(value, weight, index, n, top, threshold):
    """Drop the candidates with a probability of at least ``threshold``, except the least likely of
    them.

    Returns the number of candidates kept. Source: XTC, "exclude top choices" (p-e-w 2024).
    """
    least = threshold * weigh(value, weight, n, top, 1.0)
    least_likely = -1
    for i in range(n):
        if weight[i] >= least and (least_likely < 0 or value[i] <= value[least_likely]):
            least_likely = i
    n_kept = 0
    for i in range(n):
        if weight[i] < least or i == least_likely:
            value[n_kept], index[n_kept] = value[i], index[i]
            n_kept += 1
    return n_kept
