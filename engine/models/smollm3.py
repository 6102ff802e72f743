"""The smollm3 architecture (SmolLM 3): llama's layers, every fourth of which does not tell positions apart."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, other_biases, qkv_biases
from engine.weights.weights import TensorSpec

PERIOD = 4


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    """The last layer of each period has no rope."""
    return Layer(replace(attention, rope=None) if number % PERIOD == PERIOD - 1 else attention, feed_forward)


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope turns neighbouring elements."""
    return reading.decoder_config(read, _layer, neighbours=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**decoder_tensors(config), **qkv_biases(config, required=False), **other_biases(config)}


ARCHITECTURE = Architecture(_read, _tensors)
