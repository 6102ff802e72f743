"""The phi2 architecture (Phi 1.5 and 2): both branches from one LayerNorm, biases everywhere, the head's included."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, norm_biases, other_biases, qkv_biases
from engine.weights.weights import TensorSpec


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(attention, replace(feed_forward, gate="gelu", has_no_gate=True), side_by_side=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {
        **decoder_tensors(config),
        **norm_biases(config),
        **qkv_biases(config),
        **other_biases(config),
        "output.bias": TensorSpec((config.vocab_size,)),
    }


ARCHITECTURE = Architecture(reading.decoder(_layer, neighbours=False, layer_norm=True), _tensors)
