"""The arcee architecture (AFM): llama's layers with a feed-forward that squares what is above zero and has no gate."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, rope_factors
from engine.weights.weights import TensorSpec


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(attention, replace(feed_forward, gate="relu squared", has_no_gate=True))


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope turns neighbouring elements; the published model stretches it by YaRN."""
    return reading.decoder_config(read, _layer, neighbours=True, factors="rope_freqs.weight")


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**decoder_tensors(config), **rope_factors(config)}


ARCHITECTURE = Architecture(_read, _tensors)
