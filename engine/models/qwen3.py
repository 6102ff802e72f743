"""The qwen3 architecture: llama's layers with every head's query and key normalised before rope."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.models import decoder
from engine.models.base import TensorSpec, decoder_tensors

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.models.decoder import Decoder


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """List every tensor a qwen3 file may hold."""
    tensors = decoder_tensors(config)
    for layer in range(config.n_layers):
        tensors[f"blk.{layer}.attn_q_norm.weight"] = TensorSpec((config.head_dim,))
        tensors[f"blk.{layer}.attn_k_norm.weight"] = TensorSpec((config.head_dim,))
    return tensors


def compose(d: Decoder) -> None:
    """Write the layers, from token ids to the residual stream.

    Rope pairs the two halves of a head, behind the head's norm.
    """
    decoder.embedding(d)
    for layer in range(d.config.n_layers):
        decoder.self_attention(d, layer, neighbours=False)
        decoder.feed_forward(d, layer)
