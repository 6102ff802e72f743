"""The qwen3moe architecture (Qwen 3 30B-A3B, 235B-A22B): qwen3's layers with experts in each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.config import Attention, Dense, Layer, Router
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.gguf.hyperparameters import Hyperparameters


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the two halves of a head."""

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        experts = reading.experts(read, reading.expert_width(read, dense), Router(renormalised=True))
        return Layer(replace(attention, head_norms=True), experts)

    return reading.decoder_config(read, layer, neighbours=False, has_experts=True)


ARCHITECTURE = Architecture(_read, decoder_tensors)
