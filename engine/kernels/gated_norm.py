"""Normalisation and gate of the heads of a mixer, f32, in place.

x = rmsnorm(x) * silu(gate), or x = rmsnorm(x * silu(gate)).
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.gates import silu_times
from engine.kernels.records import GATED_NORM as F
from engine.kernels.rmsnorm import inverse_rms, scale_by
from engine.kernels.share import n_tokens_of, share


@inner
def gate_head(x, gate, n_bytes):
    """Compute x *= silu(gate)."""
    for offset in range(0, n_bytes, 32):
        vec.store_f32x8(
            x + offset, silu_times(vec.load_f32x8(gate + offset), vec.load_f32x8(x + offset))
        )


@kernel
def gated_norm(op, thread, n_threads):
    """Normalise and gate every head, in the order that the record names.

    Threads share the heads of all tokens.
    """
    n_heads, head_dim, is_gated_first, weights, weight_step = vec.load_words(
        op, (F.n_heads, F.head_dim, F.gate_first, F.weight, F.weight_step)
    )
    eps = vec.load_f64(op + F.eps)
    first, last = share(n_tokens_of(op) * n_heads, 1, thread, n_threads)
    for i in range(first, last):
        t = i // n_heads
        head = i % n_heads
        x = vec.load_i64(op + F.x) + 4 * i * head_dim
        weight = weights + head * weight_step
        gate = vec.load_i64(op + F.gate) + 4 * (
            t * vec.load_i64(op + F.gate_stride) + head * head_dim
        )
        if is_gated_first:
            gate_head(x, gate, 4 * head_dim)
        if weights != 0:
            scale_by(x, weight, 0, inverse_rms(x, head_dim, eps), x, 0, head_dim)
        if not is_gated_first:
            gate_head(x, gate, 4 * head_dim)
