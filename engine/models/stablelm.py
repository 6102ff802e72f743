"""The stablelm architecture (StableLM 3B, Zephyr, 2 1.6B): llama's layers with LayerNorm and heads turned in part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, norm_biases, qkv_biases

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.gguf.hyperparameters import Hyperparameters
    from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the halves of what it turns. The 12B, whose heads have LayerNorms, is refused for its tensors."""
    return reading.decoder_config(read, reading.plain_layer, neighbours=False, layer_norm=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**decoder_tensors(config), **norm_biases(config), **qkv_biases(config, required=False)}


ARCHITECTURE = Architecture(_read, _tensors)
