"""Operations by the names plans use. Importing this package imports no kernel and no numba."""

KERNELS: dict[str, str] = {
    "rmsnorm": "engine.kernels.rmsnorm:rmsnorm",
    "layernorm": "engine.kernels.layernorm:layernorm",
    "layernorm heads": "engine.kernels.layernorm:layernorm_heads",
    "quantize q8_k": "engine.kernels.quantize_activations:q8_k",
    "quantize q8_k paired": "engine.kernels.quantize_activations:q8_k_paired",
    "quantize q8_k bytes": "engine.kernels.quantize_activations:q8_k_bytes",
    "quantize q8_k words": "engine.kernels.quantize_activations:q8_k_words",
    "quantize q8_0": "engine.kernels.quantize_activations:q8_0",
    "quantize q8_0 paired": "engine.kernels.quantize_activations:q8_0_paired",
    "quantize q8_0 planes8": "engine.kernels.quantize_activations:q8_0_planes8",
    "quantize q8_0 planes4": "engine.kernels.quantize_activations:q8_0_planes4",
    "quantize q8_0 bytes": "engine.kernels.quantize_activations:q8_0_bytes",
    "quantize q8_0 words": "engine.kernels.quantize_activations:q8_0_words",
    "quantize f16": "engine.kernels.round_activations:round_f16",
    "quantize bf16": "engine.kernels.round_activations:round_bf16",
    "angles": "engine.kernels.rope:angles",
    "scaled angles": "engine.kernels.rope:scaled_angles",
    "rope": "engine.kernels.rope:rope",
    "swiglu": "engine.kernels.swiglu:swiglu",
    "geglu": "engine.kernels.geglu:geglu",
    "squared relu": "engine.kernels.activate:squared_relu",
    "gelu": "engine.kernels.activate:gelu",
    "xielu": "engine.kernels.xielu:xielu",
    "add": "engine.kernels.add:add",
    "add normed": "engine.kernels.add:add_normed",
    "scale": "engine.kernels.scale:scale",
    "soft cap": "engine.kernels.scale:soft_cap",
    "probe": "engine.kernels.probe:read_all",
    "count steps": "engine.kernels.probe:count_steps",
    "reset claims": "engine.kernels.share:reset_claims",
    "take column": "engine.kernels.take_column:take_column",
    "join attention": "engine.kernels.join_attention:join_attention",
}
"""Operations on unquantised data; ``embed``, ``matvec`` and ``matmul`` are followed by a type of ``QUANTS``."""
CACHE_KERNELS = {"store": "store", "attention": "attention", "attention parts": "attention_parts"}
"""Operations on the cache, followed by a type of ``KV_TYPES`` -> their names in ``engine.kernels.kv_TYPE``."""
