"""Architecture qwen2moe (Qwen 1.5 and 2 with experts): qwen2's layers, experts, and a gated shared
expert."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, qkv_biases


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of a head, and the weights of experts are
    not normalised."""

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        shared = Dense(reading.shared_width(read) or dense.hidden_dim)
        experts = reading.experts(read, reading.expert_width(read, dense), Router())
        return Layer(attention, replace(experts, shared=shared, shared_is_gated=True))

    return reading.decoder_config(read, layer, neighbours=False, has_experts=True)


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, qkv_biases))
