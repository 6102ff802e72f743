"""The compiled half of sampling: logits in, one token id out. No Python objects, no GIL."""

import math
from typing import Any

import numpy as np

from engine.jit import entry, inner
from engine.sampling.candidate_kernels import (
    BINS,
    PIECE,
    cut,
    cut_typical,
    drop_expected,
    gather,
    gather_largest,
    keep_from,
    largest,
    spread,
    weigh,
)

Floats = np.ndarray[Any, np.dtype[np.float32]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int32]]
Words = np.ndarray[Any, np.dtype[np.uint64]]

FEW = 1024
"""Up to this top_k the largest logits are kept in a heap; more are found by bins."""
REACH = 87.0
"""A token this much below the likeliest, at a temperature of 1 and below, has no probability that float32 could hold.
So tokens that a form or the user forbids are never candidates, whatever the settings."""
FORBIDDEN = 1e6
"""What is that much below the likeliest was forbidden: models have no such logits."""


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
def largest_of(value, n):
    """Return the place of the largest of n candidates, the first of equals."""
    at = 0
    for i in range(1, n):
        if value[i] > value[at]:
            at = i
    return at


def warm_up() -> None:
    """Compile the entries, or load them from the cache, by running each once on two logits."""
    logits, state = np.zeros(2, np.float32), np.zeros(1, np.uint64)
    largest_logit(logits)
    copy_logits(logits, logits)
    floats, ints = np.empty((3, 10), np.float32), np.empty((2, 10), np.int32)
    draw(logits, 1.0, 2, 1.0, 0.0, 0.0, 1.0, 0.0, 0.1, state, floats, ints, np.empty(BINS))


@entry
def draw(
    logits: Floats,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    top_n_sigma: float,
    typical_p: float,
    xtc_probability: float,
    xtc_threshold: float,
    state: Words,
    floats: Floats,
    ints: Ints,
    mass: Doubles,
) -> int:
    """Draw a token: top-n-sigma, top-k, typical, top-p, min-p and XTC, each on what the one before left; temperature.

    Args:
        logits: (vocab_size,) float32.
        temperature: 0 takes the likeliest of what is left.
        top_k: candidates kept, 1 to vocab_size.
        top_p, typical_p: share of probability kept, 1 keeps all.
        min_p: least probability relative to the likeliest, 0 keeps all.
        top_n_sigma: standard deviations of the logits below the largest that are kept, 0 keeps all.
        xtc_probability, xtc_threshold: how often the likeliest are dropped, and from which probability on.
        state: (1,) uint64, the generator's; moved on by one draw, by two with XTC.
        floats, ints: (3, vocab_size + 8) float32 and (2, vocab_size + 8) int32, overwritten.
        mass: (BINS,) float64, overwritten.

    Returns:
        The token id, or -1 where a logit is NaN or infinite.
    """
    value, weight, key, index, place = floats[0], floats[1], floats[2], ints[0], ints[1]
    top, is_broken = largest(logits)
    if is_broken:
        return -1
    least = top - REACH * max(temperature, 1.0)
    if top_n_sigma > 0.0:
        least = max(least, top - top_n_sigma * spread(logits, top, FORBIDDEN))
    depth = math.log(min_p) if min_p > 0.0 else -np.inf
    if typical_p >= 1.0 and top_p >= 1.0:
        least = max(least, top + depth)
    if top_k <= FEW:
        gather_largest(logits, top_k, value, index)
        n = keep_from(least, value, weight, index, top_k)
    else:
        n = gather(logits, least, value, index)
        if n > top_k:
            weight[:n] = 1.0
            n = cut(value, value, weight, index, n, float(top_k), place, mass)
    if typical_p < 1.0:
        n = cut_typical(value, weight, key, index, n, top, typical_p, place, mass)
        top = value[largest_of(value, n)]
    if top_p < 1.0:
        wanted = top_p * weigh(value, weight, n, top, 1.0)
        n = keep_from(top + depth, value, weight, index, n)  # first, since it is cheap: what is left is the same
        n = cut(value, value, weight, index, n, wanted, place, mass)
    elif typical_p < 1.0:
        n = keep_from(top + depth, value, weight, index, n)
    if xtc_probability > 0.0 and xtc_threshold <= 0.5 and n > 1 and next_uniform(state) <= xtc_probability:
        n = drop_expected(value, weight, index, n, top, xtc_threshold)
        top = value[largest_of(value, n)]
    if temperature == 0.0:
        return index[largest_of(value, n)]
    mark = next_uniform(state) * weigh(value, weight, n, top, 1.0 / temperature)
    for i in range(n):
        mark -= weight[i]
        if mark < 0.0:
            return index[i]
    return index[n - 1]
