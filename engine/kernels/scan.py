"""The recurrences of linear attention: a matrix for each head that decays, takes something in, and
answers a query.

A matrix has a row for each element of a key and is in strips of 32 columns,
``[head][column/32][row][32]``. Columns do not know of each other, so a thread works off a strip for
all tokens of a step before the next one: 16 kB for rows of 128, which stay in the first level of
the cache. It does the same for one token and for many, in the same order, so no result depends on
how tokens are fed.

Why prompts are not cut into chunks that become matrix products: for heads of 128 and chunks of 64
that takes 4.2 million multiplications, where this takes 3.1 million and one more to let the matrix
decay (``PERFORMANCE.md``), without a system of equations.
"""

import math

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import RATES, STEP, STRIP
from engine.kernels.records import SCAN as F
from engine.kernels.share import n_tokens_of, share
from engine.kernels.strips import load_strip, minus, no_strip, plus_times, store_strip, times

AHEAD = 2
"""Tokens from one to that which is asked for."""


@inner
def key_head(op, head):
    """The head of keys and queries that a head of values goes with."""
    n_heads, n_key_heads = vec.load_words(op, (F.n_heads, F.n_key_heads))
    if vec.load_i64(op + F.is_grouped):
        return head // (n_heads // n_key_heads)
    return head % n_key_heads


@inner
def ask_for_token(n_rows, ahead, q, k, v, out):
    """Ask for what a later token brings and for where its answer goes: tokens are too far apart to
    be foreseen.

    Args:
        ahead: bytes from one token's query, key and value to the later one's.
    """
    for at in range(ahead, ahead + 4 * n_rows, 64):
        vec.prefetch_l1(q + at)
        vec.prefetch_l1(k + at)
    for at in range(0, 4 * STRIP, 64):
        vec.prefetch_l1(v + ahead + at)
        vec.prefetch_l1(out + at)


@kernel
def delta_net(op, thread, n_threads):
    """M = decay M + k d, with d = rate (v - decay M k), and out = M q; strips of heads are dealt to
    the threads."""
    step = vec.load_i64(op + F.step)
    n_tokens, slot = vec.load_words(step, (STEP.n_tokens, STEP.slot))
    n_rows, head_dim, n_heads = vec.load_words(op, (F.n_rows, F.head_dim, F.n_heads))
    row_bytes = 4 * vec.load_i64(op + F.stride)
    out_bytes = 4 * n_heads * head_dim
    each = head_dim // STRIP
    first, last = share(n_heads * each, 1, thread, n_threads)
    for i in range(first, last):
        head = i // each
        strip = i % each
        place = vec.load_i64(op + F.state) + 4 * STRIP * n_rows * i
        before = place + slot * vec.load_i64(op + F.slot_bytes)
        after = place + (1 - slot) * vec.load_i64(op + F.slot_bytes)
        at = 4 * key_head(op, head) * n_rows
        q = vec.load_i64(op + F.q) + at
        k = vec.load_i64(op + F.k) + at
        v = vec.load_i64(op + F.v) + 4 * (head * head_dim + strip * STRIP)
        out = vec.load_i64(op + F.out) + 4 * (head * head_dim + strip * STRIP)
        decay = vec.load_i64(op + F.decay) + 4 * head
        rate = vec.load_i64(op + F.rate) + 4 * head
        known = no_strip()
        for row in range(n_rows):
            to = (
                after + 4 * STRIP * row
            )  # written below; with one token it was last read a token ago
            vec.prefetch_l1(to)
            vec.prefetch_l1(to + 64)
            known = plus_times(
                known, vec.load_f32(k + 4 * row), load_strip(before + 4 * STRIP * row)
            )
        for t in range(n_tokens):
            fades = vec.load_f32(decay)
            learned = times(vec.load_f32(rate), minus(load_strip(v), times(fades, known)))
            if t + AHEAD < n_tokens:
                ask_for_token(n_rows, AHEAD * row_bytes, q, k, v, out + AHEAD * out_bytes)
            following = k + row_bytes if t + 1 < n_tokens else k
            answer = no_strip()
            known = no_strip()
            for row in range(n_rows):
                m = times(fades, load_strip(before + 4 * STRIP * row))
                m = plus_times(m, vec.load_f32(k + 4 * row), learned)
                store_strip(after + 4 * STRIP * row, m)
                answer = plus_times(answer, vec.load_f32(q + 4 * row), m)
                known = plus_times(known, vec.load_f32(following + 4 * row), m)
            store_strip(out, answer)
            before = after
            q = q + row_bytes
            k = k + row_bytes
            v = v + row_bytes
            out = out + out_bytes
            decay = decay + 4 * n_heads
            rate = rate + 4 * n_heads


@inner
def narrow(op, columns, width, n_tokens, q, k, v, out, decay, rate, skip):
    """Eight columns of a strip that is narrower than others, as ``selective_scan`` does it.

    Args:
        columns: (before, after), where the eight begin; rows are ``width`` columns long.
    """
    n_rows, n_heads = vec.load_words(op, (F.n_rows, F.n_heads))
    row_bytes = 4 * vec.load_i64(op + F.stride)
    out_bytes = 4 * n_heads * vec.load_i64(op + F.head_dim)
    before, after = columns
    for _ in range(n_tokens):
        fades = vec.splat_f32x8(vec.load_f32(decay))
        x = vec.load_f32x8(v)
        answer = vec.splat_f32x8(0.0)
        d = vec.fmul(vec.splat_f32x8(vec.load_f32(rate)), x)
        for row in range(n_rows):
            m = vec.fmul(fades, vec.load_f32x8(before + 4 * width * row))
            m = vec.fma(vec.splat_f32x8(vec.load_f32(k + 4 * row)), d, m)
            vec.store_f32x8(after + 4 * width * row, m)
            answer = vec.fma(vec.splat_f32x8(vec.load_f32(q + 4 * row)), m, answer)
        vec.store_f32x8(out, vec.fma(vec.splat_f32x8(skip), x, answer))
        before = after
        q = q + row_bytes
        k = k + row_bytes
        v = v + row_bytes
        out = out + out_bytes
        decay = decay + 4 * n_heads
        rate = rate + 4 * n_heads


@kernel
def selective_scan(op, thread, n_threads):
    """M = decay M + k (rate v), and out = M q + skip v (Dao and Gu 2024, arXiv:2405.21060)."""
    step = vec.load_i64(op + F.step)
    n_tokens, slot = vec.load_words(step, (STEP.n_tokens, STEP.slot))
    n_rows, head_dim, n_heads = vec.load_words(op, (F.n_rows, F.head_dim, F.n_heads))
    row_bytes = 4 * vec.load_i64(op + F.stride)
    out_bytes = 4 * n_heads * head_dim
    each = (head_dim + STRIP - 1) // STRIP
    first, last = share(n_heads * each, 1, thread, n_threads)
    for i in range(first, last):
        head = i // each
        start = i % each * STRIP
        place = vec.load_i64(op + F.state) + 4 * n_rows * (head * head_dim + start)
        before = place + slot * vec.load_i64(op + F.slot_bytes)
        after = place + (1 - slot) * vec.load_i64(op + F.slot_bytes)
        at = 4 * key_head(op, head) * n_rows
        q = vec.load_i64(op + F.q) + at
        k = vec.load_i64(op + F.k) + at
        v = vec.load_i64(op + F.v) + 4 * (head * head_dim + start)
        out = vec.load_i64(op + F.out) + 4 * (head * head_dim + start)
        decay = vec.load_i64(op + F.decay) + 4 * head
        rate = vec.load_i64(op + F.rate) + 4 * head
        skip = vec.load_f32(vec.load_i64(op + F.skip) + 4 * head)
        width = min(STRIP, head_dim - start)
        if width < STRIP:
            for at in range(0, 4 * width, 32):
                narrow(
                    op,
                    (before + at, after + at),
                    width,
                    n_tokens,
                    q,
                    k,
                    v + at,
                    out + at,
                    decay,
                    rate,
                    skip,
                )
            continue
        for t in range(n_tokens):
            if t + AHEAD < n_tokens:
                ask_for_token(n_rows, AHEAD * row_bytes, q, k, v, out + AHEAD * out_bytes)
            fades = vec.load_f32(decay)
            x = load_strip(v)
            answer = no_strip()
            learned = times(vec.load_f32(rate), x)
            for row in range(n_rows):
                m = times(fades, load_strip(before + 4 * STRIP * row))
                m = plus_times(m, vec.load_f32(k + 4 * row), learned)
                store_strip(after + 4 * STRIP * row, m)
                answer = plus_times(answer, vec.load_f32(q + 4 * row), m)
            store_strip(out, plus_times(answer, skip, x))
            before = after
            q = q + row_bytes
            k = k + row_bytes
            v = v + row_bytes
            out = out + out_bytes
            decay = decay + 4 * n_heads
            rate = rate + 4 * n_heads


@kernel
def rates(op, thread, n_threads):
    """decay = exp(s A) with s = softplus(time + bias); rate = sigmoid(rate), or s where ``raw`` is
    0.

    Heads of all tokens are dealt to the threads.
    """
    n_heads, times, raw, stride = vec.load_words(
        op, (RATES.n_heads, RATES.time, RATES.raw, RATES.stride)
    )
    n_together, pitch, decay, rate = vec.load_words(
        op, (RATES.n_together, RATES.pitch, RATES.decay, RATES.rate)
    )
    first, last = share(n_tokens_of(op) * n_heads, 1, thread, n_threads)
    for i in range(first, last):
        head = i % n_heads
        at = 4 * (i // n_heads * stride + head // n_together * pitch + head % n_together)
        x = vec.load_f32(times + at) + vec.load_f32(vec.load_i64(op + RATES.bias) + 4 * head)
        passed = x * 1.0 if x > 20.0 else math.log(1.0 + math.exp(x))
        vec.store_f32(
            decay + 4 * i,
            math.exp(passed * vec.load_f32(vec.load_i64(op + RATES.factor) + 4 * head)),
        )
        if raw == 0:
            vec.store_f32(rate + 4 * i, passed)
        else:
            vec.store_f32(rate + 4 * i, 1.0 / (1.0 + math.exp(-vec.load_f32(raw + at))))
