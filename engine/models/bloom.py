"""The bloom architecture (BLOOM, BLOOMZ): a normed embedding, scores that fall with distance, biases everywhere."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.models import reading
from engine.models.base import Architecture, fused_tensors, norm_biases, other_biases, qkv_biases
from engine.weights.weights import TensorSpec

ALIBI = 8.0
EMBEDDING_NORM = "token_embd_norm"


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    mixer = replace(attention, rope=None, alibi=ALIBI)
    return Layer(mixer, replace(feed_forward, gate="gelu", has_no_gate=True))


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {
        **fused_tensors(config),
        **{f"{EMBEDDING_NORM}.{kind}": TensorSpec((config.dim,)) for kind in ("weight", "bias")},
        **norm_biases(config),
        **qkv_biases(config),
        **other_biases(config),
    }


ARCHITECTURE = Architecture(reading.decoder(_layer, neighbours=False, layer_norm=True, embedding_norm=True), _tensors)
