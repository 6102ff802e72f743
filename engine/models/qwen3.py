"""The qwen3, qwen3vl and openelm architectures: llama's layers with every head's query and key normed before rope."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(replace(attention, head_norms=True), feed_forward)


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the two halves of a head."""
    return reading.decoder_config(read, _layer, neighbours=False)


ARCHITECTURE = Architecture(_read, decoder_tensors)
