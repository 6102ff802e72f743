"""The nemotron architecture (Nemotron 4, Minitron): LayerNorm, and a squared feed-forward without a gate."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, norm_biases, other_biases, qkv_biases
from engine.weights.weights import TensorSpec


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(attention, replace(feed_forward, gate="relu squared", has_no_gate=True))


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the halves of what it turns, a part of each head."""
    return reading.decoder_config(read, _layer, neighbours=False, layer_norm=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    biases = {**norm_biases(config), **qkv_biases(config, required=False), **other_biases(config)}
    return {**decoder_tensors(config), **biases}


ARCHITECTURE = Architecture(_read, _tensors)
