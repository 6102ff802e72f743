"""Architecture jais (Jais 13B, 30B): ALiBi, biases everywhere, and gates."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    fused_tensors,
    norm_biases,
    other_biases,
    qkv_biases,
)


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; scores are divided by the width of a head, not by its root."""
    alibi = reading.number_or_none(read, "attention.max_alibi_bias") or 0.0

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        return Layer(
            replace(attention, rope=None, alibi=alibi, scale=1.0 / attention.key_dim), feed_forward
        )

    return reading.decoder_config(read, layer, neighbours=False, layer_norm=True)


ARCHITECTURE = Architecture(_read, all_of(fused_tensors, norm_biases, qkv_biases, other_biases))
