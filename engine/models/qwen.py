"""The qwen architecture (Qwen 1): fused projections with biases."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, fused_first, qkv_biases
from engine.weights.weights import TensorSpec


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    """What files give as the width is that of gate and up together."""
    return Layer(attention, replace(feed_forward, hidden_dim=max(1, feed_forward.hidden_dim // 2)))


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the two halves of a head."""
    return reading.decoder_config(read, _layer, neighbours=False)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**fused_first(decoder_tensors(config)), **qkv_biases(config, required=True)}


ARCHITECTURE = Architecture(_read, _tensors)
