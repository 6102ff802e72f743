"""The granite architecture (Granite 3 and 4, dense): llama's layers with four multipliers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.config import Attention, Dense, Layer
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, other_biases, rope_factors

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.gguf.hyperparameters import Hyperparameters
    from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope turns neighbouring elements, unless the file says that the model was not trained with it."""
    turns = read.flag("rope.scaling.finetuned", default=True)
    scale = read.number("attention.scale", 0.0)  # 0 stands for the usual one

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        rope = attention.rope if turns else None
        return Layer(replace(attention, rope=rope, scale=scale or attention.scale), feed_forward)

    return reading.decoder_config(
        read,
        layer,
        neighbours=True,
        factors="rope_freqs.weight",
        embedding_scale=reading.multiplier(read, "embedding_scale"),
        residual_scale=reading.multiplier(read, "residual_scale"),
        logit_scale=1.0 / read.positive("logit_scale"),
    )


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**decoder_tensors(config), **other_biases(config), **rope_factors(config)}


ARCHITECTURE = Architecture(_read, _tensors)
