"""Compiled penalties for repetition: token counts, and how much of the end of a text was written
before."""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import PENALISE, REPEATS


@kernel
def penalise(op, thread, n_threads):
    """Lower the logits of recent tokens, see ``lower_logits``."""
    n_vocab = vec.load_i64(op + PENALISE.n_vocab)
    lower_logits(
        vec.array_f32(vec.load_i64(op + PENALISE.logits), n_vocab),
        vec.array_i32(vec.load_i64(op + PENALISE.recent), vec.load_i64(op + PENALISE.n)),
        vec.array_i32(vec.load_i64(op + PENALISE.counts), n_vocab),
        vec.load_f64(op + PENALISE.repeat),
        vec.load_f64(op + PENALISE.frequency),
        vec.load_f64(op + PENALISE.presence),
    )


@inner
def lower_logits(logits, recent, counts, repeat, frequency, presence):
    """Lower the logits of recent tokens.

    Args:
        logits: (vocab_size,) float32, changed in place.
        recent: (n,) int32 token ids.
        counts: (vocab_size,) int32, zeros before and after.
        repeat: Divides positive and multiplies negative logits, once each. Keskar et al. 2019,
            arXiv:1909.05858, 4.1.
        frequency: Subtracted for each occurrence of a token.
        presence: Subtracted once.
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
    """Find the tokens that would continue a repetition, see ``repeats_of``."""
    n = vec.load_i64(op + REPEATS.n)
    n_repeats = repeats_of(
        vec.array_i32(vec.load_i64(op + REPEATS.recent), n),
        vec.load_i64(op + REPEATS.limit),
        vec.load_i64(op + REPEATS.min_length),
        vec.array_i32(vec.load_i64(op + REPEATS.lengths), n),
        vec.array_i32(vec.load_i64(op + REPEATS.longest), vec.load_i64(op + REPEATS.n_vocab)),
        vec.array_i32(vec.load_i64(op + REPEATS.repeats), n),
    )
    vec.store_i64(op + REPEATS.result, n_repeats)


@inner
def repeats_of(recent, limit, min_length, lengths, longest, repeats):
    """Find the tokens that would continue a repetition of the end of a text, and its length.

    Each position is compared with the end by the Z-algorithm (Gusfield 1997, 1.4), backwards and in
    linear time.



    Args:
        recent: (n,) int32 token ids.
        limit: Limit on the tokens of the end that count.
        min_length: Shortest repetition that counts.
        lengths: (n,) int32, overwritten.
        longest: (vocab_size,) int32, zeros; gets the length for each token found.
        repeats: (n,) int32, overwritten with the tokens.

    Returns:
        Number of tokens found.
    """
    n = recent.shape[0]
    begin = 0
    end = 0
    n_repeats = 0
    for k in range(1, n):
        length = 0
        if k < end:
            length = min(lengths[k - begin], end - k)
        while k + length < n and recent[n - 1 - length] == recent[n - 1 - k - length]:
            length += 1
        lengths[k] = length
        if k + length > end:
            begin = k
            end = k + length
        counted_length = min(length, limit)
        if counted_length >= min_length:
            token = recent[n - k]
            if longest[token] == 0:
                repeats[n_repeats] = token
                n_repeats += 1
            longest[token] = max(longest[token], counted_length + 1)
    return n_repeats
