"""The jais architecture (Jais 13B, 30B): scores that fall with distance, biases everywhere, and gates."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, fused_first, norm_biases, other_biases, qkv_biases
from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Scores are divided by the width of a head, not by its root."""
    alibi = reading.number_or_none(read, "attention.max_alibi_bias") or 0.0

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        return Layer(replace(attention, rope=None, alibi=alibi, scale=1.0 / attention.key_dim), feed_forward)

    return reading.decoder_config(read, layer, neighbours=False, layer_norm=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {
        **fused_first(decoder_tensors(config)),
        **norm_biases(config),
        **qkv_biases(config, required=True),
        **other_biases(config, required=True),
    }


ARCHITECTURE = Architecture(_read, _tensors)
