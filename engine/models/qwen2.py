"""Architecture qwen2 (Qwen 2 and 2.5): llama's layers with biases of query, key and value."""

from engine.config import ModelConfig
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, qkv_biases
from engine.weights.weights import TensorSpec


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    biases = {**qkv_biases(config), "output.bias": TensorSpec((config.vocab_size,), required=False)}
    return {**decoder_tensors(config), **biases}


ARCHITECTURE = Architecture(reading.decoder(neighbours=False), _tensors)
