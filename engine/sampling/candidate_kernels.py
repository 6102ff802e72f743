"""Candidates for the next token: gathered from the logits and cut down, without sorting a whole
vocabulary.

Candidate i is ``value[i]``, its logit, and ``index[i]``, its token id. All arrays have room for
eight more numbers than there are logits, since weights are computed eight at a time.
"""

import math

import numpy as np

from engine import simd as vec
from engine.jit import inner
from engine.kernels.exp import exp_lanes

PIECE = 256
"""Logits per block: one pass over a block decides whether its logits need to be examined one by
one."""
BINS = 256
"""Parts into which ``cut`` divides the keys in a round."""
LOWEST = np.float32(-3e38)


@inner
def largest(logits):
    """Return the largest of (n,) logits, and whether any is NaN or infinite."""
    at = logits.ctypes.data
    n = logits.shape[0]
    tops = vec.splat_f32x8(LOWEST)
    broken = vec.splat_f32x8(0.0)
    zero = vec.splat_f32x8(0.0)
    whole = n // 8 * 8
    for i in range(0, whole, 8):
        x = vec.load_f32x8(at + 4 * i)
        tops = vec.fmax(x, tops)
        broken = vec.fma(x, zero, broken)
    # NaN is not 0
    top = vec.max_f32x8(tops)
    is_broken = vec.sum_f32x8(broken) != 0.0
    for i in range(whole, n):
        top = max(top, logits[i])
        is_broken |= not abs(logits[i]) < np.inf
    return top, is_broken


@inner
def has_from(logits, least):
    """Return whether any logit is at least ``least``, without a branch per logit.

    Takes a slice: an index that might be negative would keep LLVM from comparing several logits at
    once.
    """
    found = 0
    for i in range(logits.shape[0]):
        found |= logits[i] >= least
    return found


@inner
def spread(logits, top, deepest):
    """Return the standard deviation of the logits, without those that are ``deepest`` below the
    largest: forbidden."""
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
    """Take the logits from ``least`` on as candidates, in the order of their ids; returns how
    many."""
    n = 0
    for begin in range(0, logits.shape[0], PIECE):
        end = min(begin + PIECE, logits.shape[0])
        if has_from(logits[begin:end], least):
            for i in range(begin, end):
                if logits[i] >= least:
                    value[n] = logits[i]
                    index[n] = i
                    n += 1
    return n


@inner
def sift_down(heap_value, heap_index, n, start):
    """Restore a heap whose smallest value is at the root."""
    at = start
    while True:
        child = 2 * at + 1
        if child >= n:
            return
        if child + 1 < n and heap_value[child + 1] < heap_value[child]:
            child += 1
        if heap_value[at] <= heap_value[child]:
            return
        heap_value[at], heap_value[child] = heap_value[child], heap_value[at]
        heap_index[at], heap_index[child] = heap_index[child], heap_index[at]
        at = child


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
        if has_from(logits[begin:end], value[0]):
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
def keep_from(least, value, weight, index, n):
    """Keep the candidates whose logit is at least ``least``; returns how many."""
    kept = 0
    for i in range(n):
        if value[i] >= least:
            value[kept], weight[kept], index[kept] = value[i], weight[i], index[i]
            kept += 1
    return kept


@inner
def weigh(value, weight, n, top, factor):
    """Write weight = exp((value - top) * factor) of n candidates; returns the sum."""
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
def cut(key, value, weight, index, n, wanted, place, mass):
    """Keep the candidates with the largest keys, as few as have weights of ``wanted`` together;
    returns how many.

    The key at which that is reached is found in rounds: the keys are divided into bins, and the bin
    where the sum gets there becomes the next round's whole. Of equal keys the first stay.

    Args:
        key: (n,) float32, any numbers; may be ``value``.
        place: (n,) int32, overwritten: candidates of the round.
        mass: (BINS,) float64, overwritten: weight of each bin.
    """
    for i in range(n):
        place[i] = i
    m = n
    reached = 0.0
    while True:
        low = high = key[place[0]]
        for j in range(1, m):
            low = min(low, key[place[j]])
            high = max(high, key[place[j]])
        if low == high:
            break
        scale = (BINS - 0.5) / (
            float(high) - float(low)
        )  # the largest key is in the last bin, however it is rounded
        mass[:] = 0.0
        for j in range(m):
            mass[int((float(key[place[j]]) - float(low)) * scale)] += weight[place[j]]
        chosen = BINS - 1
        while chosen > 0 and reached + mass[chosen] < wanted:
            reached += mass[chosen]
            chosen -= 1
        inside = 0
        for j in range(m):
            if int((float(key[place[j]]) - float(low)) * scale) == chosen:
                place[inside] = place[j]
                inside += 1
        m = inside
    last = key[place[0]]
    equals = 0
    while equals < m:
        reached += weight[place[equals]]
        equals += 1
        if reached >= wanted:
            break
    kept = 0
    for i in range(n):
        is_equal = key[i] == last
        if key[i] > last or (is_equal and equals > 0):
            equals -= is_equal
            value[kept], weight[kept], index[kept] = value[i], weight[i], index[i]
            kept += 1
    return kept


@inner
def next_above(x):
    """The next float64 above a positive one: three quarters of its last place, or more, are rounded
    to a whole one."""
    return x + x * 1.6653345369377348e-16


@inner
def cut_typical(value, weight, key, index, n, top, share, place, mass):
    """Keep the candidates whose information is nearest to what is expected; returns how many.

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
    return cut(key, value, weight, index, n, next_above(share * total), place, mass)


@inner
def drop_expected(value, weight, index, n, top, threshold):
    """Drop the candidates with a probability from ``threshold`` on, but for the least likely of
    them; returns the rest.

    Source: XTC, "exclude top choices" (p-e-w 2024).
    """
    least = threshold * weigh(value, weight, n, top, 1.0)
    stays = -1
    for i in range(n):
        if weight[i] >= least and (stays < 0 or value[i] <= value[stays]):
            stays = i
    kept = 0
    for i in range(n):
        if weight[i] < least or i == stays:
            value[kept], index[kept] = value[i], index[i]
            kept += 1
    return kept
