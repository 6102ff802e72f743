"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), optionally after a norm of each head."""

import math

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import ANGLES, STEP
from engine.kernels.records import ROPE as F
from engine.kernels.rmsnorm import inverse_rms, scale_by
from engine.kernels.share import share


@kernel
def scaled_angles(op, thread, n_threads):
    """Write ``angles`` times a factor that may grow with the position (YaRN, longrope, Mistral 3's queries)."""
    step, n_pairs, magnitude = (
        vec.load_i64(op + ANGLES.step),
        vec.load_i64(op + ANGLES.n_pairs),
        vec.load_f64(op + ANGLES.magnitude),
    )
    frequencies, growth, span = (
        vec.load_i64(op + ANGLES.frequencies),
        vec.load_f64(op + ANGLES.growth),
        vec.load_i64(op + ANGLES.span),
    )
    start_pos = vec.load_i64(step + STEP.start_pos)
    first, last = share(vec.load_i64(step + STEP.n_tokens), 1, thread, n_threads)
    for t in range(first, last):
        at = vec.load_i64(op + ANGLES.out) + 8 * t * n_pairs
        factor = magnitude * (1.0 + growth * math.log(1.0 + (start_pos + t) // span))
        for i in range(n_pairs):
            angle = (start_pos + t) * vec.load_f64(frequencies + 8 * i)
            vec.store_f32(at + 4 * i, factor * math.cos(angle))
            vec.store_f32(at + 4 * (n_pairs + i), factor * math.sin(angle))


@kernel
def angles(op, thread, n_threads):
    """cos and sin of position times frequency, in float64 before the rounding, once for all layers."""
    step, n_pairs = vec.load_i64(op + ANGLES.step), vec.load_i64(op + ANGLES.n_pairs)
    frequencies, out = vec.load_i64(op + ANGLES.frequencies), vec.load_i64(op + ANGLES.out)
    start_pos = vec.load_i64(step + STEP.start_pos)
    first, last = share(vec.load_i64(step + STEP.n_tokens), 1, thread, n_threads)
    for t in range(first, last):
        at = out + 8 * t * n_pairs
        for i in range(n_pairs):
            angle = (start_pos + t) * vec.load_f64(frequencies + 8 * i)
            vec.store_f32(at + 4 * i, math.cos(angle))
            vec.store_f32(at + 4 * (n_pairs + i), math.sin(angle))


@inner
def rotate(head, angles_at, n_pairs, pair_step, pair_distance):
    """Turn each pair of one head; pairs are neighbours (llama) or half a head apart (qwen), distances in elements."""
    for i in range(n_pairs):
        cos, sin = vec.load_f32(angles_at + 4 * i), vec.load_f32(angles_at + 4 * (n_pairs + i))
        a, b = head + 4 * i * pair_step, head + 4 * (i * pair_step + pair_distance)
        x, y = vec.load_f32(a), vec.load_f32(b)
        vec.store_f32(a, x * cos - y * sin)
        vec.store_f32(b, x * sin + y * cos)


@kernel
def rope(op, thread, n_threads):
    """Heads of all tokens are dealt to the threads."""
    step, n_heads, head_dim = vec.load_i64(op + F.step), vec.load_i64(op + F.n_heads), vec.load_i64(op + F.head_dim)
    x, out, weight, eps = (
        vec.load_i64(op + F.x),
        vec.load_i64(op + F.out),
        vec.load_i64(op + F.weight),
        vec.load_f64(op + F.eps),
    )
    n_pairs, angles_at = vec.load_i64(op + F.n_pairs), vec.load_i64(op + F.angles)
    pair_step, pair_distance = vec.load_i64(op + F.pair_step), vec.load_i64(op + F.pair_distance)
    first, last = share(vec.load_i64(step + STEP.n_tokens) * n_heads, 1, thread, n_threads)
    for i in range(first, last):
        at = 4 * i * head_dim
        if weight != 0:
            scale_by(x + at, weight, inverse_rms(x + at, head_dim, eps), out + at, 0, head_dim)
        rotate(out + at, angles_at + 8 * (i // n_heads) * n_pairs, n_pairs, pair_step, pair_distance)
