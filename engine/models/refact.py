"""The refact architecture (Refact 1.6B): llama's layers without rope, whose scores fall with distance."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, qkv_biases
from engine.weights.weights import TensorSpec

ALIBI = 8.0


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(replace(attention, rope=None, alibi=ALIBI), feed_forward)


def _read(read: Hyperparameters) -> ModelConfig:
    return reading.decoder_config(read, _layer, neighbours=False)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**decoder_tensors(config), **qkv_biases(config, required=False)}


ARCHITECTURE = Architecture(_read, _tensors)
