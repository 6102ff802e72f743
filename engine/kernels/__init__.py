"""Operations by the names plans use. Importing this package imports no kernel and no numba."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.jit import Kernel

KERNELS: dict[str, str] = {
    "rmsnorm": "engine.kernels.rmsnorm:rmsnorm",
    "quantize q8_k": "engine.kernels.quantize_activations:q8_k",
    "quantize q8_k paired": "engine.kernels.quantize_activations:q8_k_paired",
    "quantize q8_k bytes": "engine.kernels.quantize_activations:q8_k_bytes",
    "quantize q8_k words": "engine.kernels.quantize_activations:q8_k_words",
    "quantize q8_0": "engine.kernels.quantize_activations:q8_0",
    "quantize q8_0 paired": "engine.kernels.quantize_activations:q8_0_paired",
    "quantize q8_0 bytes": "engine.kernels.quantize_activations:q8_0_bytes",
    "quantize q8_0 words": "engine.kernels.quantize_activations:q8_0_words",
    "quantize f16": "engine.kernels.round_activations:round_f16",
    "quantize bf16": "engine.kernels.round_activations:round_bf16",
    "angles": "engine.kernels.rope:angles",
    "rope": "engine.kernels.rope:rope",
    "swiglu": "engine.kernels.swiglu:swiglu",
    "probe": "engine.kernels.probe:read_all",
    "reset claims": "engine.kernels.share:reset_claims",
    "take column": "engine.kernels.take_column:take_column",
    "store f16": "engine.kernels.kv_f16:store",
    "store f32": "engine.kernels.kv_f32:store",
    "store q8_0": "engine.kernels.kv_q8_0:store",
    "attention f16": "engine.kernels.kv_f16:attention",
    "attention f32": "engine.kernels.kv_f32:attention",
    "attention q8_0": "engine.kernels.kv_q8_0:attention",
    "attention parts f16": "engine.kernels.kv_f16:attention_parts",
    "attention parts f32": "engine.kernels.kv_f32:attention_parts",
    "attention parts q8_0": "engine.kernels.kv_q8_0:attention_parts",
    "join attention": "engine.kernels.join_attention:join_attention",
}
"""Operations on unquantised data; ``embed``, ``matvec`` and ``matmul`` are followed by a type of ``QUANTS``."""


def find_kernel(name: str) -> Kernel:
    """Import the kernel a plan names: ``"rmsnorm"``, ``"matvec Q4_K"``."""
    if name in KERNELS:
        module, attribute = KERNELS[name].split(":")
        return getattr(import_module(module), attribute)
    from engine.quants import load_quant

    operation, quant = name.split(" ")
    return getattr(load_quant(quant), operation)
