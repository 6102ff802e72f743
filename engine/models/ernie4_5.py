"""The ernie4_5 architecture (ERNIE 4.5, dense): llama's layers."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, other_biases, qkv_biases
from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope turns neighbouring elements."""
    return reading.decoder_config(read, reading.plain_layer, neighbours=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**decoder_tensors(config), **qkv_biases(config, required=False), **other_biases(config)}


ARCHITECTURE = Architecture(_read, _tensors)
