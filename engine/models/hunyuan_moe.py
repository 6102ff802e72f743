"""The hunyuan-moe architecture (Hunyuan A13B): norms of heads after they are turned, experts, and a shared one."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, qkv_biases, rope_factors
from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the two halves of a head."""

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        router = Router(renormalised=True, scale=reading.multiplier(read, "expert_weights_scale"))
        found = reading.experts(read, dense.hidden_dim, router)
        shared = Dense(reading.shared_width(read) or dense.hidden_dim)
        return Layer(replace(attention, head_norms=True, norms_turned=True), replace(found, shared=shared))

    return reading.decoder_config(read, layer, neighbours=False, factors="rope_freqs.weight", has_experts=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**decoder_tensors(config), **qkv_biases(config, required=False), **rope_factors(config)}


ARCHITECTURE = Architecture(_read, _tensors)
