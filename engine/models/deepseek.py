"""Architectures deepseek and bailingmoe (DeepSeek MoE 16B; Ling Lite, Plus 1): experts next to
shared experts."""

from engine.config import ModelConfig, Router
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
    """Read the configuration; RoPE rotates neighbouring elements, and the first layers may have no
    experts."""
    scale = reading.multiplier(read, "expert_weights_scale")
    norm = read.flag("expert_weights_norm", default=False)
    layers = reading.next_to_shared(read, Router(renormalised=norm, scale=scale))
    return reading.decoder_config(
        read, layers, neighbours=True, factors="rope_freqs.weight", has_experts=True
    )


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, optional_qkv_biases, rope_factors))
