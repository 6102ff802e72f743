"""Argument records of the plan's operations: names of their 8-byte words, as byte offsets.

Python writes a record through these names and kernels read it through the same ones. Every word is an int64; floats
travel as their bits. Knows no numba.
"""

from typing import NamedTuple


class Step(NamedTuple):
    """What changes from one walk of the plan to the next; one record for the whole session."""

    n_tokens: int = 0
    start_pos: int = 8
    tokens: int = 16
    column: int = 24


class Embed(NamedTuple):
    """Rows of the token embedding, dequantised: out[(token), dim] f32."""

    step: int = 0
    weights: int = 8
    row_bytes: int = 16
    n_blocks: int = 24
    out: int = 32
    dim: int = 40


class RmsNorm(NamedTuple):
    """out[(token), dim] = x / rms(x) * weight, f32."""

    step: int = 0
    x: int = 8
    weight: int = 16
    out: int = 24
    dim: int = 32
    eps: int = 40


class Quantize(NamedTuple):
    """int8 activations: q[(token), n], scales d f32, sums of groups."""

    step: int = 0
    x: int = 8
    n: int = 16
    q: int = 24
    d: int = 32
    sums: int = 40


class Matmul(NamedTuple):
    """out[(token), n_rows] = weights @ x (+ add). ``add`` is 0, a bias, or the residual itself."""

    step: int = 0
    weights: int = 8
    row_bytes: int = 16
    n_rows: int = 24
    n_cols: int = 32
    q: int = 40
    d: int = 48
    sums: int = 56
    out: int = 64
    add: int = 72
    add_stride: int = 80
    scratch: int = 88
    scratch_bytes: int = 96
    out_stride: int = 104


class Rope(NamedTuple):
    """Rotate q and k in place by position, and write k and v to the cache."""

    step: int = 0
    q: int = 8
    k: int = 16
    v: int = 24
    n_heads: int = 32
    n_kv_heads: int = 40
    head_dim: int = 48
    rope_dim: int = 56
    table: int = 64
    k_cache: int = 72
    v_cache: int = 80
    k_head_bytes: int = 88
    v_head_bytes: int = 96
    q_norm: int = 104
    k_norm: int = 112
    eps: int = 120
    k_scales: int = 128
    v_scales: int = 136
    max_seq_len: int = 144


class Attention(NamedTuple):
    """Softmax attention of n_heads queries over the cache, grouped by KV head."""

    step: int = 0
    q: int = 8
    out: int = 16
    n_heads: int = 24
    n_kv_heads: int = 32
    head_dim: int = 40
    k_cache: int = 48
    v_cache: int = 56
    k_head_bytes: int = 64
    v_head_bytes: int = 72
    k_scales: int = 80
    v_scales: int = 88
    max_seq_len: int = 96
    scratch: int = 104
    scratch_bytes: int = 112
    scale: int = 120
    n_chunks: int = 128


class SwiGLU(NamedTuple):
    """gate = silu(gate) * up, f32, in place."""

    step: int = 0
    gate: int = 8
    up: int = 16
    n: int = 24


class TakeColumn(NamedTuple):
    """Copy one token's column of x to out."""

    step: int = 0
    x: int = 8
    out: int = 16
    dim: int = 24


STEP, EMBED, RMSNORM, QUANTIZE, MATMUL = Step(), Embed(), RmsNorm(), Quantize(), Matmul()
ROPE, ATTENTION, SWIGLU, TAKE_COLUMN = Rope(), Attention(), SwiGLU(), TakeColumn()
