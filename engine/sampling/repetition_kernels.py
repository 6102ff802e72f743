"""The compiled half of what makes repetition less likely: token counts, and how much of the end was
written before."""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import PENALISE, REPEATS


@kernel
def penalise(op, thread, n_threads):
    """Make tokens that came up less likely, see ``lower``."""
    n_vocab = vec.load_i64(op + PENALISE.n_vocab)
    lower(
        vec.array_f32(vec.load_i64(op + PENALISE.logits), n_vocab),
        vec.array_i32(vec.load_i64(op + PENALISE.recent), vec.load_i64(op + PENALISE.n)),
        vec.array_i32(vec.load_i64(op + PENALISE.counts), n_vocab),
        vec.load_f64(op + PENALISE.repeat),
        vec.load_f64(op + PENALISE.frequency),
        vec.load_f64(op + PENALISE.presence),
    )


@inner
def lower(logits, recent, counts, repeat, frequency, presence):
    """Make tokens that came up less likely.

    Args:
        logits: (vocab_size,) float32, changed in place.
        recent: (n,) int32 token ids.
        counts: (vocab_size,) int32, zeros before and after.
        repeat: divides positive and multiplies negative logits, each once. Keskar et al. 2019,
            arXiv:1909.05858, 4.1.
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


@kernel
def find_repeats(op, thread, n_threads):
    """Find the tokens that would go on with a repetition, see ``repeats_of``."""
    n = vec.load_i64(op + REPEATS.n)
    n_found = repeats_of(
        vec.array_i32(vec.load_i64(op + REPEATS.recent), n),
        vec.load_i64(op + REPEATS.limit),
        vec.load_i64(op + REPEATS.least),
        vec.array_i32(vec.load_i64(op + REPEATS.lengths), n),
        vec.array_i32(vec.load_i64(op + REPEATS.longest), vec.load_i64(op + REPEATS.n_vocab)),
        vec.array_i32(vec.load_i64(op + REPEATS.found), n),
    )
    vec.store_i64(op + REPEATS.result, n_found)


@inner
def repeats_of(recent, limit, least, lengths, longest, found):
    """Find the tokens that would go on with a repetition of the end of some tokens, and its length.

    Each place is compared with the end by the Z-algorithm (Gusfield 1997, 1.4), backwards and in
    linear time.

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
    begin = 0
    end = 0
    n_found = 0
    for k in range(1, n):
        same = 0
        if k < end:
            same = min(lengths[k - begin], end - k)
        while k + same < n and recent[n - 1 - same] == recent[n - 1 - k - same]:
            same += 1
        lengths[k] = same
        if k + same > end:
            begin = k
            end = k + same
        counted = min(same, limit)
        if counted >= least:
            token = recent[n - k]
            if longest[token] == 0:
                found[n_found] = token
                n_found += 1
            longest[token] = max(longest[token], counted + 1)
    return n_found
