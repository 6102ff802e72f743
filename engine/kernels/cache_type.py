"""The kernels of a KV cache type, made from the layouts of its keys and values."""

from collections.abc import Callable
from typing import Any, NamedTuple

from engine.jit import kernels_of
from engine.kernels.attend_parts import attend_parts
from engine.kernels.attend_tokens import attend_tokens
from engine.kernels.store_kv import store_heads


class CacheLayout(NamedTuple):
    """Storage of keys, or of values.

    Attributes:
        bits: Bits of an element.
        block: Elements that share a scale; ``UNSCALED`` if there are no scales.
        load: Of keys (tile, scales, i) -> f32x8, element i of the tile's eight positions, scaled.
            Of values (row, scales, i) -> f32x8, elements i to i + 7 of one position, scaled; i is a
            multiple of 8.
        store: (x, head_dim, address, step, scales, scale_step) -> None, writes one position of one
            head. Neighbouring elements are ``step`` elements or bytes apart, scales ``scale_step``
            bytes.
    """

    bits: int
    block: int
    load: Callable[..., Any]
    store: Callable[..., Any]


def cache_kernels(module, keys, values):
    """Make the kernels of a type.

    ``store`` writes k and v of the step's tokens. ``attention_parts`` computes partial results of
    one token, ``attention`` the attention of a block of tokens.
    """
    (k_bits, k_block, load_k, store_k) = keys
    (v_bits, v_block, load_v, store_v) = values

    def store(op, thread, n_threads):
        store_heads(store_k, k_bits, k_block, store_v, v_bits, v_block, op, thread, n_threads)

    def attention_parts(op, thread, n_threads):
        attend_parts((k_bits, k_block, load_k, v_bits, v_block, load_v), op, thread, n_threads)

    def attention(op, thread, n_threads):
        attend_tokens((k_bits, k_block, load_k, v_bits, v_block, load_v), op, thread, n_threads)

    return kernels_of(module, store=store, attention_parts=attention_parts, attention=attention)
