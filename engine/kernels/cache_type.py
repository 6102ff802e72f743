"""The three kernels of a type of the cache, of what it says of its keys and of its values."""

from collections.abc import Callable
from typing import Any, NamedTuple

from engine.jit import kernels_of
from engine.kernels.attend_parts import attend_parts
from engine.kernels.attend_tokens import attend_tokens
from engine.kernels.store_kv import store_heads


class CacheLayout(NamedTuple):
    """How keys, or values, are kept.

    Attributes:
        bits: of one element.
        block: elements that share a scale, ``UNSCALED`` where there is none.
        load: of keys (tile, scales, i) -> f32x8, element i of the tile's eight positions, scaled;
            of values (row, scales, i) -> f32x8, eight elements of one position from i on, a
            multiple of 8, scaled.
        store: (x, head_dim, at, step, scales, scale_step) -> None, writes one position of one head,
            neighbours ``step`` elements or bytes apart and their scales ``scale_step`` bytes.
    """

    bits: int
    block: int
    load: Callable[..., Any]
    store: Callable[..., Any]


def cache_kernels(module, keys, values):
    """Make ``store``, which writes k and v of the step's tokens; and attention, of one token up to
    partial results (``attention_parts``) and of a block of tokens."""
    (k_bits, k_block, load_k, store_k) = keys
    (v_bits, v_block, load_v, store_v) = values

    def store(op, thread, n_threads):
        store_heads(store_k, k_bits, k_block, store_v, v_bits, v_block, op, thread, n_threads)

    def attention_parts(op, thread, n_threads):
        attend_parts((k_bits, k_block, load_k, v_bits, v_block, load_v), op, thread, n_threads)

    def attention(op, thread, n_threads):
        attend_tokens((k_bits, k_block, load_k, v_bits, v_block, load_v), op, thread, n_threads)

    return kernels_of(module, store=store, attention_parts=attention_parts, attention=attention)
