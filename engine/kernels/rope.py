"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864), after an optional norm of each
head.

(a, b) -> (a cos - b sin, a sin + b cos) for each pair of elements, f32.
"""

import math

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import ANGLES, STEP
from engine.kernels.records import ROPE as F
from engine.kernels.rmsnorm import inverse_rms, scale_by
from engine.kernels.share import n_tokens_of, share


@kernel
def angles(op, thread, n_threads):
    """Write cos and sin of position * frequency, once for all layers.

    The product is float64 before it is rounded to f32. Both have a factor that may grow with the
    position (YaRN, longrope, Mistral 3's queries).
    """
    step, n_pairs, frequencies, span = vec.load_words(
        op, (ANGLES.step, ANGLES.n_pairs, ANGLES.frequencies, ANGLES.span)
    )
    magnitude = vec.load_f64(op + ANGLES.magnitude)
    growth = vec.load_f64(op + ANGLES.growth)
    start_pos = vec.load_i64(step + STEP.start_pos)
    first, last = share(n_tokens_of(op), 1, thread, n_threads)
    for t in range(first, last):
        token_out = vec.load_i64(op + ANGLES.out) + 8 * t * n_pairs
        factor = magnitude * (1.0 + growth * math.log(1.0 + (start_pos + t) // span))
        for i in range(n_pairs):
            angle = (start_pos + t) * vec.load_f64(frequencies + 8 * i)
            vec.store_f32(token_out + 4 * i, factor * math.cos(angle))
            vec.store_f32(token_out + 4 * (n_pairs + i), factor * math.sin(angle))


@inner
def rotate(head, angles_address, n_pairs, pair_step, pair_distance):
    """Rotate each pair of one head.

    Pairs are neighbours (llama) or half a head apart (qwen); distances are in elements.
    """
    for i in range(n_pairs):
        cos = vec.load_f32(angles_address + 4 * i)
        sin = vec.load_f32(angles_address + 4 * (n_pairs + i))
        a = head + 4 * i * pair_step
        b = head + 4 * (i * pair_step + pair_distance)
        x = vec.load_f32(a)
        y = vec.load_f32(b)
        vec.store_f32(a, x * cos - y * sin)
        vec.store_f32(b, x * sin + y * cos)


@kernel
def rope(op, thread, n_threads):
    """Normalise and rotate the heads of all tokens, which the threads share."""
    n_heads, head_dim, x, out, weight = vec.load_words(
        op, (F.n_heads, F.head_dim, F.x, F.out, F.weight)
    )
    n_pairs, angles_address, pair_step, distance = vec.load_words(
        op, (F.n_pairs, F.angles, F.pair_step, F.pair_distance)
    )
    eps = vec.load_f64(op + F.eps)
    first, last = share(n_tokens_of(op) * n_heads, 1, thread, n_threads)
    for i in range(first, last):
        offset = 4 * i * head_dim
        if weight != 0:
            scale_by(
                x + offset,
                weight,
                0,
                inverse_rms(x + offset, head_dim, eps),
                out + offset,
                0,
                head_dim,
            )
        rotate(
            out + offset,
            angles_address + 8 * (i // n_heads) * n_pairs,
            n_pairs,
            pair_step,
            distance,
        )
