"""The maincoder architecture (Maincoder 1B): heads are normed after they are turned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.config import Attention, Dense, Layer
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.gguf.hyperparameters import Hyperparameters


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(replace(attention, head_norms=True, norms_turned=True), feed_forward)


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope turns neighbouring elements."""
    return reading.decoder_config(read, _layer, neighbours=True)


ARCHITECTURE = Architecture(_read, decoder_tensors)
