"""The compiled half of sampling: logits in, one token id out. No Python objects, no GIL."""

import math
from typing import Any

import numpy as np

from engine.jit import entry, inner

Floats = np.ndarray[Any, np.dtype[np.float32]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Words = np.ndarray[Any, np.dtype[np.uint64]]

PIECE = 256
"""Logits per block: one pass over a block decides whether its logits need to be examined one by one."""


@entry
def largest_logit(logits: Floats) -> int:
    """Index of the largest logit, the first of equals; -1 where any is NaN or infinite.

    Args:
        logits: (vocab_size,) float32.
    """
    best, at = np.float32(-np.inf), -1
    for begin in range(0, logits.shape[0], PIECE):
        end = min(begin + PIECE, logits.shape[0])
        is_broken, has_larger = look_at(logits[begin:end], best)
        if is_broken:
            return -1
        if has_larger:
            for i in range(begin, end):
                if logits[i] > best:
                    best, at = logits[i], i
    return at


@inner
def look_at(logits, least):
    """Return (1 if any logit is NaN or infinite, 1 if any is above ``least``), without a branch per logit.

    Takes a slice: an index that might be negative would keep LLVM from comparing several logits at once.
    """
    is_broken, has_larger = 0, 0
    for i in range(logits.shape[0]):
        is_broken |= not abs(logits[i]) < np.inf
        has_larger |= logits[i] > least
    return is_broken, has_larger


@entry
def copy_logits(source: Floats, target: Floats) -> bool:
    """Copy logits, both (vocab_size,) float32; False where any is NaN or infinite."""
    is_broken = 0
    for i in range(source.shape[0]):
        target[i] = source[i]
        is_broken |= not abs(source[i]) < np.inf
    return is_broken == 0


@entry
def penalise(logits: Floats, recent: Ints, penalty: float) -> None:
    """Divide positive and multiply negative logits of recent tokens, each token once.

    Args:
        logits: (vocab_size,) float32, changed in place.
        recent: (n,) int64 distinct token ids.
        penalty: above 1 discourages. Source: Keskar et al. 2019, arXiv:1909.05858, section 4.1.
    """
    for i in range(recent.shape[0]):
        x = logits[recent[i]]
        logits[recent[i]] = x / penalty if x > 0 else x * penalty


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
def keep_largest(logits, k, value, index):
    """The k largest logits, in descending order, into value and index; False where a logit is NaN or infinite."""
    for i in range(k):
        value[i], index[i] = logits[i], i
    for start in range(k // 2 - 1, -1, -1):
        sift_down(value, index, k, start)
    for begin in range(0, logits.shape[0], PIECE):
        end = min(begin + PIECE, logits.shape[0])
        is_broken, has_larger = look_at(logits[begin:end], value[0])
        if is_broken:
            return False
        if has_larger:
            for i in range(max(begin, k), end):
                if logits[i] > value[0]:
                    value[0], index[0] = logits[i], i
                    sift_down(value, index, k, 0)
    for n in range(k - 1, 0, -1):
        value[0], value[n] = value[n], value[0]
        index[0], index[n] = index[n], index[0]
        sift_down(value, index, n, 0)
    return True


@inner
def next_uniform(state):
    """SplitMix64 (Steele, Lea and Flood 2014): a number in [0, 1), and the state moved on.

    Args:
        state: (1,) uint64.
    """
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0


@inner
def cut_top_p(weight, n, top_p):
    """How many of the descending weights it takes to reach the share top_p of their sum."""
    if top_p >= 1.0:  # the sum is reached before the end where the last weights are too small to add anything
        return n
    total = 0.0
    for i in range(n):
        total += weight[i]
    reached = 0.0
    for i in range(n):
        reached += weight[i]
        if reached >= top_p * total:
            return i + 1
    return n


def warm_up() -> None:
    """Compile the entries, or load them from the cache, by running each once on two logits."""
    logits, state = np.zeros(2, np.float32), np.zeros(1, np.uint64)
    largest_logit(logits)
    copy_logits(logits, logits)
    penalise(logits, np.zeros(1, np.int64), 1.5)
    draw(logits, 1.0, 2, 1.0, 0.0, state, np.empty(2, np.float32), np.empty(2, np.int64))


@entry
def draw(
    logits: Floats, temperature: float, top_k: int, top_p: float, min_p: float, state: Words, value: Floats, index: Ints
) -> int:
    """Draw a token: top-k, then top-p, then min-p on the unscaled distribution, then temperature.

    Args:
        logits: (vocab_size,) float32.
        temperature: above 0.
        top_k: candidates kept, 1 to len(value).
        top_p: share of probability kept, 1 keeps all.
        min_p: least probability relative to the likeliest, 0 keeps all.
        state: (1,) uint64, the generator's; moved on by one draw.
        value, index: (most candidates,) float32 and int64, overwritten.

    Returns:
        The token id, or -1 where a logit is NaN or infinite.
    """
    n = min(top_k, logits.shape[0])
    if not keep_largest(logits, n, value, index):
        return -1
    top = value[0]
    for i in range(n):
        value[i] = math.exp(value[i] - top)
    n = cut_top_p(value, n, top_p)
    while n > 1 and value[n - 1] < min_p:
        n -= 1
    total = 0.0
    for i in range(n):
        value[i] = value[i] ** (1.0 / temperature)
        total += value[i]
    mark = next_uniform(state) * total
    for i in range(n):
        mark -= value[i]
        if mark < 0.0:
            return index[i]
    return index[n - 1]
