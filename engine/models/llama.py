"""The llama architecture: Llama 2 and 3, Mistral, TinyLlama, SmolLM2 and what else is converted under that name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, other_biases, qkv_biases, rope_factors

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.gguf.hyperparameters import Hyperparameters
    from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope turns neighbouring elements: the converter has permuted q and k so. Llama 3.1 divides frequencies."""
    return reading.decoder_config(read, reading.plain_layer, neighbours=True, factors="rope_freqs.weight")


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    biases = {**qkv_biases(config, required=False), **other_biases(config)}
    return {**decoder_tensors(config), **biases, **rope_factors(config)}


ARCHITECTURE = Architecture(_read, _tensors)
