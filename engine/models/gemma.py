"""The gemma architecture (Gemma 1, CodeGemma): llama's layers with a scaled embedding and another gate."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(attention, replace(feed_forward, gate="gelu"))


def _read(read: Hyperparameters) -> ModelConfig:
    return reading.decoder_config(read, _layer, neighbours=False, embedding_scale=reading.width(read) ** 0.5)


ARCHITECTURE = Architecture(_read, decoder_tensors)
