"""The exaone and pangu-embedded architectures (EXAONE 3, 3.5; openPangu Embedded): llama's layers, halves turned."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, other_biases, qkv_biases, rope_factors
from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the two halves of a head; files may divide its frequencies."""
    return reading.decoder_config(read, reading.plain_layer, neighbours=False, factors="rope_freqs.weight")


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    biases = {**qkv_biases(config, required=False), **other_biases(config)}
    return {**decoder_tensors(config), **biases, **rope_factors(config)}


ARCHITECTURE = Architecture(_read, _tensors)
