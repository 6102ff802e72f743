"""The bitnet architecture (BitNet b1.58): norms within both branches, and one scale for each matrix of three values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.config import Attention, Dense, Layer
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.gguf.hyperparameters import Hyperparameters


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the two halves of a head."""

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        hidden = feed_forward.hidden_dim
        if hidden % reading.DIM_MULTIPLE:
            key = read.key("feed_forward_length")
            raise read.fail(f"{key} is {hidden}: must be a multiple of {reading.DIM_MULTIPLE}")
        return Layer(replace(attention, norm_within=True), replace(feed_forward, norm_within=True))

    return reading.decoder_config(read, layer, neighbours=False)


ARCHITECTURE = Architecture(_read, decoder_tensors)
