"""The qwen35 architecture (Qwen 3.5, 3.6): gated delta nets, and attention with gates in every fourth layer."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from engine.config import Attention, Dense, Layer
from engine.models import decoder, reading, recurrent
from engine.models.base import Architecture, decoder_tensors

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.gguf.hyperparameters import Hyperparameters
    from engine.weights.weights import TensorSpec

NORM = "post_attention_norm"
"""Not behind attention, as its name has it, but before the feed-forward."""
PERIOD = 4
"""Every fourth layer attends, unless the file says otherwise."""


def recurrent_layers(read: Hyperparameters) -> list[bool]:
    """Which layers are recurrent: as a list says, or all but each n-th, the last of its period."""
    key, n_blocks = "attention.recurrent_layers", read.integer("block_count", 1, reading.MAX_LAYERS)
    value = read.raw(key)
    if value is None:
        period = read.integer("full_attention_interval", 1, reading.MAX_LAYERS, default=PERIOD)
        return [(number + 1) % period != 0 for number in range(n_blocks)]
    if not isinstance(value, np.ndarray) or value.dtype != np.bool_ or len(value) != n_blocks:
        raise read.fail(f"{read.key(key)} must be {n_blocks} bools")
    return [bool(one) for one in value]


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the two halves of a part of a head."""
    is_recurrent, delta_net = recurrent_layers(read), recurrent.delta_net_of(read)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        if is_recurrent[number]:
            return Layer(delta_net, feed_forward)
        return Layer(replace(attention, head_norms=True, gated=True), feed_forward)

    return reading.decoder_config(read, layer, neighbours=False, has_predictors=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {name.replace("ffn_norm", NORM): spec for name, spec in decoder_tensors(config).items()}


ARCHITECTURE = Architecture(_read, _tensors, partial(decoder.all_layers, ffn_norm=NORM))
