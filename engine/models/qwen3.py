"""The qwen3 architecture: llama's layers with every head's query and key normalised before rope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.models.base import TensorSpec, decoder_tensors

if TYPE_CHECKING:
    from engine.config import ModelConfig


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """List every tensor a qwen3 file may hold."""
    tensors = decoder_tensors(config)
    for layer in range(config.n_layers):
        tensors[f"blk.{layer}.attn_q_norm.weight"] = TensorSpec((config.head_dim,))
        tensors[f"blk.{layer}.attn_k_norm.weight"] = TensorSpec((config.head_dim,))
    return tensors
