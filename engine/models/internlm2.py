"""The internlm2 architecture (InternLM 2 and 2.5): llama's layers."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, qkv_biases
from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope turns neighbouring elements."""
    return reading.decoder_config(read, reading.plain_layer, neighbours=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**decoder_tensors(config), **qkv_biases(config, required=False)}


ARCHITECTURE = Architecture(_read, _tensors)
