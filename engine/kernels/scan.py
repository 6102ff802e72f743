"""The recurrences of linear attention: a matrix for each head that decays, takes something in, and answers a query.

A matrix has a row for each element of a key and lies in strips of 32 columns, ``[head][column/32][row][32]``. Columns
do not know of each other, so a thread works off a strip for all tokens of a step before the next one: 16 kB for rows of
128, which stay in the first level of the cache. It does the same for one token and for many, in the same order, so no
result depends on how tokens are fed.

Why prompts are not cut into chunks that become matrix products: for heads of 128 and chunks of 64 that takes 4.2
million multiplications, where this takes 3.1 million and one more to let the matrix decay (``PERFORMANCE.md``), without
a system of equations.
"""

import math

from engine.jit import inner, kernel
from engine.kernels.records import RATES, STEP, STRIP
from engine.kernels.records import SCAN as F
from engine.kernels.share import share
from engine.simd import (
    fma,
    fmul,
    fsub,
    load_f32,
    load_f32x8,
    load_i64,
    prefetch_l1,
    splat_f32x8,
    store_f32,
    store_f32x8,
)

AHEAD = 2
"""Tokens from one to that which is asked for."""


@inner
def key_head(op, head):
    """The head of keys and queries that a head of values goes with."""
    n_heads, n_key_heads = load_i64(op + F.n_heads), load_i64(op + F.n_key_heads)
    if load_i64(op + F.is_grouped):
        return head // (n_heads // n_key_heads)
    return head % n_key_heads


@inner
def ask_for_token(n_rows, ahead, q, k, v, out):
    """Ask for what a later token brings and for where its answer goes: tokens lie too far apart to be foreseen.

    Args:
        ahead: bytes from one token's query, key and value to the later one's.
    """
    for at in range(ahead, ahead + 4 * n_rows, 64):
        prefetch_l1(q + at)
        prefetch_l1(k + at)
    for at in range(0, 4 * STRIP, 64):
        prefetch_l1(v + ahead + at)
        prefetch_l1(out + at)


@kernel
def delta_net(op, thread, n_threads):
    """M = decay M + k d, with d = rate (v - decay M k), and out = M q; strips of heads are dealt to the threads."""
    step = load_i64(op + F.step)
    n_tokens, slot = load_i64(step + STEP.n_tokens), load_i64(step + STEP.slot)
    n_rows, head_dim, n_heads = load_i64(op + F.n_rows), load_i64(op + F.head_dim), load_i64(op + F.n_heads)
    row_bytes, out_bytes = 4 * load_i64(op + F.stride), 4 * n_heads * head_dim
    each = head_dim // STRIP
    first, last = share(n_heads * each, 1, thread, n_threads)
    for i in range(first, last):
        head, strip = i // each, i % each
        place = load_i64(op + F.state) + 4 * STRIP * n_rows * i
        before = place + slot * load_i64(op + F.slot_bytes)
        behind = place + (1 - slot) * load_i64(op + F.slot_bytes)
        at = 4 * key_head(op, head) * n_rows
        q, k = load_i64(op + F.q) + at, load_i64(op + F.k) + at
        v = load_i64(op + F.v) + 4 * (head * head_dim + strip * STRIP)
        out = load_i64(op + F.out) + 4 * (head * head_dim + strip * STRIP)
        decay, rate = load_i64(op + F.decay) + 4 * head, load_i64(op + F.rate) + 4 * head
        p0, p1, p2, p3 = splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0)
        for row in range(n_rows):
            m, known = before + 4 * STRIP * row, splat_f32x8(load_f32(k + 4 * row))
            to = behind + 4 * STRIP * row  # written below; with one token it was last read a token ago
            prefetch_l1(to)
            prefetch_l1(to + 64)
            p0 = fma(known, load_f32x8(m), p0)
            p1 = fma(known, load_f32x8(m + 32), p1)
            p2 = fma(known, load_f32x8(m + 64), p2)
            p3 = fma(known, load_f32x8(m + 96), p3)
        for t in range(n_tokens):
            fades, learns = splat_f32x8(load_f32(decay)), splat_f32x8(load_f32(rate))
            d0 = fmul(learns, fsub(load_f32x8(v), fmul(fades, p0)))
            d1 = fmul(learns, fsub(load_f32x8(v + 32), fmul(fades, p1)))
            d2 = fmul(learns, fsub(load_f32x8(v + 64), fmul(fades, p2)))
            d3 = fmul(learns, fsub(load_f32x8(v + 96), fmul(fades, p3)))
            if t + AHEAD < n_tokens:
                ask_for_token(n_rows, AHEAD * row_bytes, q, k, v, out + AHEAD * out_bytes)
            following = k + row_bytes if t + 1 < n_tokens else k
            o0, o1, o2, o3 = splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0)
            p0, p1, p2, p3 = splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0)
            for row in range(n_rows):
                m, to = before + 4 * STRIP * row, behind + 4 * STRIP * row
                known, asked = splat_f32x8(load_f32(k + 4 * row)), splat_f32x8(load_f32(q + 4 * row))
                ahead = splat_f32x8(load_f32(following + 4 * row))
                m0 = fma(known, d0, fmul(fades, load_f32x8(m)))
                m1 = fma(known, d1, fmul(fades, load_f32x8(m + 32)))
                m2 = fma(known, d2, fmul(fades, load_f32x8(m + 64)))
                m3 = fma(known, d3, fmul(fades, load_f32x8(m + 96)))
                store_f32x8(to, m0)
                store_f32x8(to + 32, m1)
                store_f32x8(to + 64, m2)
                store_f32x8(to + 96, m3)
                o0, p0 = fma(asked, m0, o0), fma(ahead, m0, p0)
                o1, p1 = fma(asked, m1, o1), fma(ahead, m1, p1)
                o2, p2 = fma(asked, m2, o2), fma(ahead, m2, p2)
                o3, p3 = fma(asked, m3, o3), fma(ahead, m3, p3)
            store_f32x8(out, o0)
            store_f32x8(out + 32, o1)
            store_f32x8(out + 64, o2)
            store_f32x8(out + 96, o3)
            before, q, k, v, out = behind, q + row_bytes, k + row_bytes, v + row_bytes, out + out_bytes
            decay, rate = decay + 4 * n_heads, rate + 4 * n_heads


@inner
def narrow(op, columns, width, n_tokens, q, k, v, out, decay, rate, skip):
    """Eight columns of a strip that is narrower than others, as ``selective_scan`` does it.

    Args:
        columns: (before, behind), where the eight begin; rows are ``width`` columns long.
    """
    n_rows, n_heads = load_i64(op + F.n_rows), load_i64(op + F.n_heads)
    row_bytes, out_bytes = 4 * load_i64(op + F.stride), 4 * n_heads * load_i64(op + F.head_dim)
    before, behind = columns
    for _ in range(n_tokens):
        fades, x, answer = splat_f32x8(load_f32(decay)), load_f32x8(v), splat_f32x8(0.0)
        d = fmul(splat_f32x8(load_f32(rate)), x)
        for row in range(n_rows):
            m = fmul(fades, load_f32x8(before + 4 * width * row))
            m = fma(splat_f32x8(load_f32(k + 4 * row)), d, m)
            store_f32x8(behind + 4 * width * row, m)
            answer = fma(splat_f32x8(load_f32(q + 4 * row)), m, answer)
        store_f32x8(out, fma(splat_f32x8(skip), x, answer))
        before, q, k, v, out = behind, q + row_bytes, k + row_bytes, v + row_bytes, out + out_bytes
        decay, rate = decay + 4 * n_heads, rate + 4 * n_heads


@kernel
def selective_scan(op, thread, n_threads):
    """M = decay M + k (rate v), and out = M q + skip v (Dao and Gu 2024, arXiv:2405.21060)."""
    step = load_i64(op + F.step)
    n_tokens, slot = load_i64(step + STEP.n_tokens), load_i64(step + STEP.slot)
    n_rows, head_dim, n_heads = load_i64(op + F.n_rows), load_i64(op + F.head_dim), load_i64(op + F.n_heads)
    row_bytes, out_bytes = 4 * load_i64(op + F.stride), 4 * n_heads * head_dim
    each = (head_dim + STRIP - 1) // STRIP
    first, last = share(n_heads * each, 1, thread, n_threads)
    for i in range(first, last):
        head, start = i // each, i % each * STRIP
        place = load_i64(op + F.state) + 4 * n_rows * (head * head_dim + start)
        before = place + slot * load_i64(op + F.slot_bytes)
        behind = place + (1 - slot) * load_i64(op + F.slot_bytes)
        at = 4 * key_head(op, head) * n_rows
        q, k = load_i64(op + F.q) + at, load_i64(op + F.k) + at
        v, out = (
            load_i64(op + F.v) + 4 * (head * head_dim + start),
            load_i64(op + F.out) + 4 * (head * head_dim + start),
        )
        decay, rate = load_i64(op + F.decay) + 4 * head, load_i64(op + F.rate) + 4 * head
        skip = load_f32(load_i64(op + F.skip) + 4 * head)
        width = min(STRIP, head_dim - start)
        if width < STRIP:
            for at in range(0, 4 * width, 32):
                narrow(op, (before + at, behind + at), width, n_tokens, q, k, v + at, out + at, decay, rate, skip)
            continue
        for t in range(n_tokens):
            if t + AHEAD < n_tokens:
                ask_for_token(n_rows, AHEAD * row_bytes, q, k, v, out + AHEAD * out_bytes)
            fades, learns, skips = splat_f32x8(load_f32(decay)), splat_f32x8(load_f32(rate)), splat_f32x8(skip)
            x0, x1, x2, x3 = load_f32x8(v), load_f32x8(v + 32), load_f32x8(v + 64), load_f32x8(v + 96)
            d0, d1, d2, d3 = fmul(learns, x0), fmul(learns, x1), fmul(learns, x2), fmul(learns, x3)
            o0, o1, o2, o3 = splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0), splat_f32x8(0.0)
            for row in range(n_rows):
                m, to = before + 4 * STRIP * row, behind + 4 * STRIP * row
                known, asked = splat_f32x8(load_f32(k + 4 * row)), splat_f32x8(load_f32(q + 4 * row))
                m0 = fma(known, d0, fmul(fades, load_f32x8(m)))
                m1 = fma(known, d1, fmul(fades, load_f32x8(m + 32)))
                m2 = fma(known, d2, fmul(fades, load_f32x8(m + 64)))
                m3 = fma(known, d3, fmul(fades, load_f32x8(m + 96)))
                store_f32x8(to, m0)
                store_f32x8(to + 32, m1)
                store_f32x8(to + 64, m2)
                store_f32x8(to + 96, m3)
                o0, o1, o2, o3 = fma(asked, m0, o0), fma(asked, m1, o1), fma(asked, m2, o2), fma(asked, m3, o3)
            store_f32x8(out, fma(skips, x0, o0))
            store_f32x8(out + 32, fma(skips, x1, o1))
            store_f32x8(out + 64, fma(skips, x2, o2))
            store_f32x8(out + 96, fma(skips, x3, o3))
            before, q, k, v, out = behind, q + row_bytes, k + row_bytes, v + row_bytes, out + out_bytes
            decay, rate = decay + 4 * n_heads, rate + 4 * n_heads


@kernel
def rates(op, thread, n_threads):
    """decay = exp(s A) with s = softplus(time + bias); rate = sigmoid(rate), or s where ``raw`` is 0.

    Heads of all tokens are dealt to the threads.
    """
    n_heads, times, raw = load_i64(op + RATES.n_heads), load_i64(op + RATES.time), load_i64(op + RATES.raw)
    n_together, pitch = load_i64(op + RATES.n_together), load_i64(op + RATES.pitch)
    row_bytes, decay, rate = 4 * load_i64(op + RATES.stride), load_i64(op + RATES.decay), load_i64(op + RATES.rate)
    first, last = share(load_i64(load_i64(op + RATES.step) + STEP.n_tokens) * n_heads, 1, thread, n_threads)
    for i in range(first, last):
        head = i % n_heads
        at = i // n_heads * row_bytes + 4 * (head // n_together * pitch + head % n_together)
        x = load_f32(times + at) + load_f32(load_i64(op + RATES.bias) + 4 * head)
        passed = x * 1.0 if x > 20.0 else math.log(1.0 + math.exp(x))
        store_f32(decay + 4 * i, math.exp(passed * load_f32(load_i64(op + RATES.factor) + 4 * head)))
        if raw == 0:
            store_f32(rate + 4 * i, passed)
        else:
            store_f32(rate + 4 * i, 1.0 / (1.0 + math.exp(-load_f32(raw + at))))
