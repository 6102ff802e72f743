"""Causal convolution of each channel by itself, f32, over the inputs of this block and a state.

out[t, c] = sum over j of weights[j, c] * x[t - taps + 1 + j, c]. The state holds the last taps - 1
inputs before the block.

Tokens are computed from last to first, so results can replace inputs. Threads share the channels.
The order of additions is the same for one token and for many, so no result depends on how tokens
are fed.
"""

from engine import simd as vec
from engine.jit import inner, kernel
from engine.kernels.gates import silu_times
from engine.kernels.records import CONVOLUTION as F
from engine.kernels.records import STEP
from engine.kernels.share import n_tokens_of, share


@inner
def input_at(op, t, c, state):
    """Return the address of channel c of token t; it is in the state if t is negative."""
    if t >= 0:
        return vec.load_i64(op + F.x) + 4 * (t * vec.load_i64(op + F.stride) + c)
    return state + 4 * ((t + vec.load_i64(op + F.taps) - 1) * vec.load_i64(op + F.n_channels) + c)


@inner
def state_address(op):
    """Return the address of the slot that holds the inputs before this block."""
    slot = vec.load_i64(vec.load_i64(op + F.step) + STEP.slot)
    return vec.load_i64(op + F.state) + slot * vec.load_i64(op + F.slot_bytes)


@inner
def save_inputs(op, state, n_tokens, first, last):
    """Write the last inputs to the other slot."""
    taps, n_channels = vec.load_words(op, (F.taps, F.n_channels))
    slot = vec.load_i64(vec.load_i64(op + F.step) + STEP.slot)
    new_state = vec.load_i64(op + F.state) + (1 - slot) * vec.load_i64(op + F.slot_bytes)
    for j in range(taps - 1):
        t = n_tokens - taps + 1 + j
        for c in range(first, last, 8):
            vec.store_f32x8(
                new_state + 4 * (j * n_channels + c), vec.load_f32x8(input_at(op, t, c, state))
            )


@inner
def convolved_with_state(op, t, c, state):
    """Return eight channels of one of the first tokens, some of whose inputs are in the state."""
    taps, n_channels = vec.load_words(op, (F.taps, F.n_channels))
    weights = vec.load_i64(op + F.weights) + 4 * c
    total = vec.splat_f32x8(0.0)
    for j in range(taps):
        inputs = vec.load_f32x8(input_at(op, t - taps + 1 + j, c, state))
        total = vec.fma(vec.load_f32x8(weights + 4 * j * n_channels), inputs, total)
    return total


@inner
def convolved(op, taps, n_channels, weights, row, row_bytes, t, c, state):
    """Return eight channels of one token.

    Args:
        row: Address of the token's inputs.
    """
    if t < taps - 1:
        return convolved_with_state(op, t, c, state)
    inputs = row - (taps - 1) * row_bytes + 4 * c
    weights = weights + 4 * c
    total = vec.splat_f32x8(0.0)
    for j in range(taps):
        total = vec.fma(
            vec.load_f32x8(weights + 4 * j * n_channels),
            vec.load_f32x8(inputs + j * row_bytes),
            total,
        )
    return total


@kernel
def short_convolution(op, thread, n_threads):
    """Compute out = gate * convolution(x * values)."""
    n_tokens = n_tokens_of(op)
    n_channels = vec.load_i64(op + F.n_channels)
    x, values, gate = vec.load_words(op, (F.x, F.values, F.gate))
    row_bytes = 4 * vec.load_i64(op + F.stride)
    out = vec.load_i64(op + F.out)
    state = state_address(op)
    taps, weights = vec.load_words(op, (F.taps, F.weights))
    first, last = share(n_channels, 8, thread, n_threads)
    for t in range(n_tokens):
        for offset in range(t * row_bytes + 4 * first, t * row_bytes + 4 * last, 32):
            vec.store_f32x8(
                x + offset, vec.fmul(vec.load_f32x8(x + offset), vec.load_f32x8(values + offset))
            )
    save_inputs(op, state, n_tokens, first, last)
    for t in range(n_tokens - 1, -1, -1):
        for c in range(first, last, 8):
            value = convolved(
                op, taps, n_channels, weights, x + t * row_bytes, row_bytes, t, c, state
            )
            gated = vec.fmul(value, vec.load_f32x8(gate + t * row_bytes + 4 * c))
            vec.store_f32x8(out + 4 * (t * n_channels + c), gated)


@inner
def lengthen(head, head_dim, eps, length):
    """Scale a head to a length: x * length / sqrt(sum of squares + eps)."""
    total = vec.splat_f32x8(0.0)
    for address in range(head, head + 4 * head_dim, 32):
        eight = vec.load_f32x8(address)
        total = vec.fma(eight, eight, total)
    factor = vec.splat_f32x8(length / (vec.sum_f32x8(total) + eps) ** 0.5)
    for address in range(head, head + 4 * head_dim, 32):
        vec.store_f32x8(address, vec.fmul(vec.load_f32x8(address), factor))


@kernel
def convolution(op, thread, n_threads):
    """Compute x = silu(convolution(x) + bias), then scale heads to their lengths.

    Threads share the heads.
    """
    n_tokens = n_tokens_of(op)
    head_dim = vec.load_i64(op + F.head_dim)
    x, bias, n_normed, n_scaled = vec.load_words(op, (F.x, F.bias, F.n_normed, F.n_scaled))
    taps, n_channels, weights = vec.load_words(op, (F.taps, F.n_channels, F.weights))
    row_bytes = 4 * vec.load_i64(op + F.stride)
    eps = vec.load_f64(op + F.eps)
    state = state_address(op)
    first, last = share(n_channels // head_dim, 1, thread, n_threads)
    save_inputs(op, state, n_tokens, first * head_dim, last * head_dim)
    for t in range(n_tokens - 1, -1, -1):
        row = x + t * row_bytes
        for c in range(first * head_dim, last * head_dim, 8):
            value = convolved(op, taps, n_channels, weights, row, row_bytes, t, c, state)
            if bias != 0:
                value = vec.fadd(value, vec.load_f32x8(bias + 4 * c))
            vec.store_f32x8(row + 4 * c, silu_times(value, vec.splat_f32x8(1.0)))
        for head in range(first, min(last, n_normed)):
            length = vec.load_f64(op + F.scale) if head < n_scaled else 1.0
            lengthen(row + 4 * head * head_dim, head_dim, eps, length)
