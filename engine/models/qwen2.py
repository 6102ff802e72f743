"""The qwen2 architecture (Qwen 2 and 2.5): llama's layers with biases on query, key and value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.models.base import TensorSpec, decoder_tensors, qkv_biases

if TYPE_CHECKING:
    from engine.config import ModelConfig


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """List every tensor a qwen2 file may hold."""
    return {**decoder_tensors(config), **qkv_biases(config, required=True)}
