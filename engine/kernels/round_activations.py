"""Activations rounded to the type of 16-bit weights and stored as f32, as llama.cpp rounds them."""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.records import QUANTIZE as F
from engine.kernels.share import n_tokens_of, share


@inner
def round_rows(round_element, op, thread, n_threads):
    """Write every token's vector, rounded, to ``q``; shares are those of ``rmsnorm``."""
    n, x, out = vec.load_words(op, (F.n, F.x, F.q))
    first, last = share(n, 256, thread, n_threads)
    for t in range(n_tokens_of(op)):
        for i in range(first, last):
            offset = 4 * (t * n + i)
            round_element(x + offset, out + offset)


@inner
def to_f16(x, out):
    """Round one element to the nearest f16."""
    vec.store_f32(out, vec.round_to_f16(vec.load_f32(x)))


@inner
def to_bf16(x, out):
    """Round one element to the nearest bfloat16, ties to even."""
    bits = vec.load_u32(x)
    vec.store_i32(out, (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000)


@kernel
def round_f16(op, thread, n_threads):
    """Round activations for F16 weights."""
    round_rows(to_f16, op, thread, n_threads)


@kernel
def round_bf16(op, thread, n_threads):
    """Round activations for BF16 weights."""
    round_rows(to_bf16, op, thread, n_threads)
