"""Names of the operations of plans, and the kernels that compute them.  Importing this package
imports no kernel and no numba."""

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
    "quantize q8_0 fours": "engine.kernels.quantize_activations:q8_0_fours",
    "quantize q8_0 planes8": "engine.kernels.quantize_activations:q8_0_planes8",
    "quantize q8_0 planes4": "engine.kernels.quantize_activations:q8_0_planes4",
    "quantize q8_0 bytes": "engine.kernels.quantize_activations:q8_0_bytes",
    "quantize q8_0 words": "engine.kernels.quantize_activations:q8_0_words",
    "quantize f16": "engine.kernels.round_activations:round_f16",
    "quantize bf16": "engine.kernels.round_activations:round_bf16",
    "angles": "engine.kernels.rope:angles",
    "rope": "engine.kernels.rope:rope",
    "hadamard": "engine.kernels.hadamard:hadamard",
    "swiglu": "engine.kernels.gates:swiglu",
    "geglu": "engine.kernels.gates:geglu",
    "reglu": "engine.kernels.gates:reglu",
    "squared relu": "engine.kernels.gates:squared_relu",
    "gelu": "engine.kernels.gates:gelu",
    "xielu": "engine.kernels.gates:xielu",
    "add": "engine.kernels.add:add",
    "add normed": "engine.kernels.add:add_normed",
    "clamped swiglu": "engine.kernels.gates:clamped_swiglu",
    "prefetch experts": "engine.kernels.prefetch_pages:prefetch_experts",
    "stream": "engine.kernels.prefetch_pages:stream",
    "choose experts": "engine.kernels.choose_experts:choose_experts",
    "group tokens": "engine.kernels.group_tokens:group_tokens",
    "each expert": "engine.kernels.group_tokens:each_expert",
    "spread tokens": "engine.kernels.expert_slots:spread_tokens",
    "sum experts": "engine.kernels.expert_slots:sum_experts",
    "scale": "engine.kernels.scale:scale",
    "soft cap": "engine.kernels.scale:soft_cap",
    "clamp": "engine.kernels.scale:clamp",
    "add positions": "engine.kernels.embed:add_positions",
    "probe": "engine.kernels.probe:read_all",
    "count steps": "engine.kernels.probe:count_steps",
    "reset claims": "engine.kernels.share:reset_claims",
    "take token": "engine.kernels.copies:take_token",
    "copy": "engine.kernels.copies:copy",
    "short convolution": "engine.kernels.convolution:short_convolution",
    "convolution": "engine.kernels.convolution:convolution",
    "delta net": "engine.kernels.scan:delta_net",
    "selective scan": "engine.kernels.scan:selective_scan",
    "rates": "engine.kernels.scan:rates",
    "gated norm": "engine.kernels.gated_norm:gated_norm",
    "sigmoid gate": "engine.kernels.gates:sigmoid_gate",
    "quick geglu": "engine.kernels.picture_gates:quick_geglu",
    "quick gelu": "engine.kernels.picture_gates:quick_gelu",
    "clamp between": "engine.kernels.picture_gates:clamp_between",
    "merge attention": "engine.kernels.merge_attention:merge_attention",
    "store bf16": "engine.kernels.picture_attention:store_keys_and_values",
    "attention bf16": "engine.kernels.picture_attention:attend_to_all",
}
"""Place of each kernel on unquantised data, by the name of its operation.

``embed``, ``matvec``, ``small_batch`` and ``matmul`` are followed by a type of ``QUANTS``.
"""
CACHE_KERNELS = {"store": "store", "attention": "attention", "attention parts": "attention_parts"}
"""Names of the kernels of a KV cache, by operation.

The name of the operation is followed by a type of ``KV_TYPES``. The kernels are in
``engine.kernels.kv_TYPE``. If keys and values differ in their type, the name of the file has both.
"""
