"""Recurrences of linear attention: each head has a matrix that decays, takes in keys and values,
and answers queries.

``delta_net``: M = decay M + k d with d = rate (v - decay M k), out = M q. ``selective_scan``: M =
decay M + k (rate v), out = M q + skip v.

All are f32. A matrix has a row for each element of a key. It is stored in strips of 32 columns,
``[head][column/32][row][32]``. Columns are independent, so a thread computes a strip for all tokens
of a step before the next strip: 16 kB for 128 rows, which stay in the first-level cache. The order
is the same for one token and for many, so no result depends on how tokens are fed.

Prompts are not cut into chunks that become matrix products: for heads of 128 and chunks of 64 that
takes 4.2 million multiplications and a system of equations, while the recurrence takes 3.1 million
and one more million for the decay (``PERFORMANCE.md``).
"""

import math

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import RATES, STEP, STRIP
from engine.kernels.records import SCAN as F
from engine.kernels.share import n_tokens_of, share
from engine.kernels.strips import load_strip, minus, plus_times, store_strip, times, zero_strip

AHEAD = 2
"""Number of tokens between a token and the one that is prefetched meanwhile."""


@inner
def key_head(op, head):
    """Return the head of keys and queries that belongs to a head of values."""
    n_heads, n_key_heads = vec.load_words(op, (F.n_heads, F.n_key_heads))
    if vec.load_i64(op + F.is_grouped):
        return head // (n_heads // n_key_heads)
    return head % n_key_heads


@inner
def prefetch_token(n_rows, ahead, q, k, v, out):
    """Prefetch the input of a later token, and the address of its output.

    Tokens are too far apart for the processor's own prefetchers.

    Args:
        ahead: Bytes from one token's query, key and value to those of the later token.
    """
    for offset in range(ahead, ahead + 4 * n_rows, 64):
        vec.prefetch_l1(q + offset)
        vec.prefetch_l1(k + offset)
    for offset in range(0, 4 * STRIP, 64):
        vec.prefetch_l1(v + ahead + offset)
        vec.prefetch_l1(out + offset)


@kernel
def delta_net(op, thread, n_threads):
    """Compute M = decay M + k d with d = rate (v - decay M k), and out = M q.

    Threads share the strips of heads.
    """
    step = vec.load_i64(op + F.step)
    n_tokens, slot = vec.load_words(step, (STEP.n_tokens, STEP.slot))
    n_rows, head_dim, n_heads = vec.load_words(op, (F.n_rows, F.head_dim, F.n_heads))
    row_bytes = 4 * vec.load_i64(op + F.stride)
    out_bytes = 4 * n_heads * head_dim
    n_strips = head_dim // STRIP
    first, last = share(n_heads * n_strips, 1, thread, n_threads)
    for i in range(first, last):
        head = i // n_strips
        strip = i % n_strips
        strip_state = vec.load_i64(op + F.state) + 4 * STRIP * n_rows * i
        old_state = strip_state + slot * vec.load_i64(op + F.slot_bytes)
        new_state = strip_state + (1 - slot) * vec.load_i64(op + F.slot_bytes)
        key_offset = 4 * key_head(op, head) * n_rows
        q = vec.load_i64(op + F.q) + key_offset
        k = vec.load_i64(op + F.k) + key_offset
        v = vec.load_i64(op + F.v) + 4 * (head * head_dim + strip * STRIP)
        out = vec.load_i64(op + F.out) + 4 * (head * head_dim + strip * STRIP)
        decay = vec.load_i64(op + F.decay) + 4 * head
        rate = vec.load_i64(op + F.rate) + 4 * head
        recalled = zero_strip()
        for row in range(n_rows):
            row_address = (
                new_state + 4 * STRIP * row
            )  # written below; with one token it was last read a token ago
            vec.prefetch_l1(row_address)
            vec.prefetch_l1(row_address + 64)
            recalled = plus_times(
                recalled, vec.load_f32(k + 4 * row), load_strip(old_state + 4 * STRIP * row)
            )
        for t in range(n_tokens):
            fade = vec.load_f32(decay)
            learned = times(vec.load_f32(rate), minus(load_strip(v), times(fade, recalled)))
            if t + AHEAD < n_tokens:
                prefetch_token(n_rows, AHEAD * row_bytes, q, k, v, out + AHEAD * out_bytes)
            next_k = k + row_bytes if t + 1 < n_tokens else k
            answer = zero_strip()
            recalled = zero_strip()
            for row in range(n_rows):
                m = times(fade, load_strip(old_state + 4 * STRIP * row))
                m = plus_times(m, vec.load_f32(k + 4 * row), learned)
                store_strip(new_state + 4 * STRIP * row, m)
                answer = plus_times(answer, vec.load_f32(q + 4 * row), m)
                recalled = plus_times(recalled, vec.load_f32(next_k + 4 * row), m)
            store_strip(out, answer)
            old_state = new_state
            q = q + row_bytes
            k = k + row_bytes
            v = v + row_bytes
            out = out + out_bytes
            decay = decay + 4 * n_heads
            rate = rate + 4 * n_heads


@inner
def narrow(op, states, width, n_tokens, q, k, v, out, decay, rate, skip):
    """Compute ``selective_scan`` for eight columns of a strip that is narrower than others.

    Args:
        states: (old state, new state): addresses of the eight columns; rows are ``width``
            columns long.
    """
    n_rows, n_heads = vec.load_words(op, (F.n_rows, F.n_heads))
    row_bytes = 4 * vec.load_i64(op + F.stride)
    out_bytes = 4 * n_heads * vec.load_i64(op + F.head_dim)
    old_state, new_state = states
    for _ in range(n_tokens):
        fade = vec.splat_f32x8(vec.load_f32(decay))
        x = vec.load_f32x8(v)
        answer = vec.splat_f32x8(0.0)
        d = vec.fmul(vec.splat_f32x8(vec.load_f32(rate)), x)
        for row in range(n_rows):
            m = vec.fmul(fade, vec.load_f32x8(old_state + 4 * width * row))
            m = vec.fma(vec.splat_f32x8(vec.load_f32(k + 4 * row)), d, m)
            vec.store_f32x8(new_state + 4 * width * row, m)
            answer = vec.fma(vec.splat_f32x8(vec.load_f32(q + 4 * row)), m, answer)
        vec.store_f32x8(out, vec.fma(vec.splat_f32x8(skip), x, answer))
        old_state = new_state
        q = q + row_bytes
        k = k + row_bytes
        v = v + row_bytes
        out = out + out_bytes
        decay = decay + 4 * n_heads
        rate = rate + 4 * n_heads


@kernel
def selective_scan(op, thread, n_threads):
    """Compute M = decay M + k (rate v), and out = M q + skip v (Dao and Gu 2024,
    arXiv:2405.21060)."""
    step = vec.load_i64(op + F.step)
    n_tokens, slot = vec.load_words(step, (STEP.n_tokens, STEP.slot))
    n_rows, head_dim, n_heads = vec.load_words(op, (F.n_rows, F.head_dim, F.n_heads))
    row_bytes = 4 * vec.load_i64(op + F.stride)
    out_bytes = 4 * n_heads * head_dim
    n_strips = (head_dim + STRIP - 1) // STRIP
    first, last = share(n_heads * n_strips, 1, thread, n_threads)
    for i in range(first, last):
        head = i // n_strips
        start = i % n_strips * STRIP
        strip_state = vec.load_i64(op + F.state) + 4 * n_rows * (head * head_dim + start)
        old_state = strip_state + slot * vec.load_i64(op + F.slot_bytes)
        new_state = strip_state + (1 - slot) * vec.load_i64(op + F.slot_bytes)
        offset = 4 * key_head(op, head) * n_rows
        q = vec.load_i64(op + F.q) + offset
        k = vec.load_i64(op + F.k) + offset
        v = vec.load_i64(op + F.v) + 4 * (head * head_dim + start)
        out = vec.load_i64(op + F.out) + 4 * (head * head_dim + start)
        decay = vec.load_i64(op + F.decay) + 4 * head
        rate = vec.load_i64(op + F.rate) + 4 * head
        skip = vec.load_f32(vec.load_i64(op + F.skip) + 4 * head)
        width = min(STRIP, head_dim - start)
        if width < STRIP:
            for offset in range(0, 4 * width, 32):
                narrow(
                    op,
                    (old_state + offset, new_state + offset),
                    width,
                    n_tokens,
                    q,
                    k,
                    v + offset,
                    out + offset,
                    decay,
                    rate,
                    skip,
                )
            continue
        for t in range(n_tokens):
            if t + AHEAD < n_tokens:
                prefetch_token(n_rows, AHEAD * row_bytes, q, k, v, out + AHEAD * out_bytes)
            fade = vec.load_f32(decay)
            x = load_strip(v)
            answer = zero_strip()
            learned = times(vec.load_f32(rate), x)
            for row in range(n_rows):
                m = times(fade, load_strip(old_state + 4 * STRIP * row))
                m = plus_times(m, vec.load_f32(k + 4 * row), learned)
                store_strip(new_state + 4 * STRIP * row, m)
                answer = plus_times(answer, vec.load_f32(q + 4 * row), m)
            store_strip(out, plus_times(answer, skip, x))
            old_state = new_state
            q = q + row_bytes
            k = k + row_bytes
            v = v + row_bytes
            out = out + out_bytes
            decay = decay + 4 * n_heads
            rate = rate + 4 * n_heads


@kernel
def rates(op, thread, n_threads):
    """Compute decay = exp(s A) with s = softplus(time + bias), and rate.

    rate = sigmoid(raw), or s if ``raw`` is 0. Threads share the heads of all tokens.
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
        offset = 4 * (i // n_heads * stride + head // n_together * pitch + head % n_together)
        x = vec.load_f32(times + offset) + vec.load_f32(vec.load_i64(op + RATES.bias) + 4 * head)
        softplus = x * 1.0 if x > 20.0 else math.log(1.0 + math.exp(x))
        vec.store_f32(
            decay + 4 * i,
            math.exp(softplus * vec.load_f32(vec.load_i64(op + RATES.factor) + 4 * head)),
        )
        if raw == 0:
            vec.store_f32(rate + 4 * i, softplus)
        else:
            vec.store_f32(rate + 4 * i, 1.0 / (1.0 + math.exp(-vec.load_f32(raw + offset))))
