"""The glm4 architecture (GLM 4, dense): norms before and after the branches, gate and up in one tensor."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, qkv_biases
from engine.weights.weights import TensorSpec


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(attention, replace(feed_forward, is_fused=True), norm_after=True)


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope turns neighbouring elements of a part of each head."""
    return reading.decoder_config(read, _layer, neighbours=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**decoder_tensors(config), **qkv_biases(config, required=False)}


ARCHITECTURE = Architecture(_read, _tensors)
