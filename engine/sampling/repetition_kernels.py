"""The compiled half of what makes repetition less likely: counts of tokens, and how long their end stood before."""

from typing import Any

import numpy as np

from engine.jit import entry

Floats = np.ndarray[Any, np.dtype[np.float32]]
Ints = np.ndarray[Any, np.dtype[np.int32]]


@entry
def penalise(logits: Floats, recent: Ints, counts: Ints, repeat: float, frequency: float, presence: float) -> None:
    """Make tokens that came up less likely.

    Args:
        logits: (vocab_size,) float32, changed in place.
        recent: (n,) int32 token ids.
        counts: (vocab_size,) int32, zeros before and after.
        repeat: divides positive and multiplies negative logits, each once. Keskar et al. 2019, arXiv:1909.05858, 4.1.
        frequency: taken off for each time that a token came up.
        presence: taken off once.
    """
    for i in range(recent.shape[0]):
        counts[recent[i]] += 1
    for i in range(recent.shape[0]):
        n = counts[recent[i]]
        if n:
            x = float(logits[recent[i]])
            x = x / repeat if x > 0.0 else x * repeat
            logits[recent[i]] = x - n * frequency - presence
            counts[recent[i]] = 0


@entry
def find_repeats(recent: Ints, limit: int, least: int, lengths: Ints, longest: Ints, found: Ints) -> int:
    """Find the tokens that would go on with a repetition of the end of some tokens, and its length.

    Each place is compared with the end by the Z-algorithm (Gusfield 1997, 1.4), backwards and in linear time.

    Args:
        recent: (n,) int32 token ids.
        limit: most tokens of the end that count.
        least: shortest repetition that is told.
        lengths: (n,) int32, overwritten.
        longest: (vocab_size,) int32, zeros; holds the length for each token found afterwards.
        found: (n,) int32, overwritten with the tokens.

    Returns:
        How many tokens were found.
    """
    n = recent.shape[0]
    begin, end, n_found = 0, 0, 0
    for k in range(1, n):
        same = 0
        if k < end:
            same = min(lengths[k - begin], end - k)
        while k + same < n and recent[n - 1 - same] == recent[n - 1 - k - same]:
            same += 1
        lengths[k] = same
        if k + same > end:
            begin, end = k, k + same
        counted = min(same, limit)
        if counted >= least:
            token = recent[n - k]
            if longest[token] == 0:
                found[n_found] = token
                n_found += 1
            longest[token] = max(longest[token], counted + 1)
    return n_found


def warm_up() -> None:
    """Compile the entries, or load them from the cache, by running each once on two tokens."""
    logits, ids, zeros = np.zeros(2, np.float32), np.zeros(2, np.int32), np.zeros(2, np.int32)
    penalise(logits, ids, zeros, 1.5, 0.0, 0.0)
    find_repeats(ids, 2, 2, ids.copy(), zeros, ids.copy())
