"""Architecture hunyuan-moe (Hunyuan A13B): heads are normed after RoPE; experts, and a shared
expert."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    optional_qkv_biases,
    rope_factors,
)


def _read(read: Hyperparameters) -> ModelConfig:
    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        router = Router(renormalised=True, scale=reading.multiplier(read, "expert_weights_scale"))
        routed = reading.experts(read, dense.hidden_dim, router)
        shared = Dense(reading.shared_width(read) or dense.hidden_dim)
        return Layer(
            replace(attention, head_norms=True, norms_turned=True), replace(routed, shared=shared)
        )

    return reading.decoder_config(
        read, layer, neighbours=False, factors="rope_freqs.weight", has_experts=True
    )


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, optional_qkv_biases, rope_factors))
