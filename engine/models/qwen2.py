"""The qwen2 architecture (Qwen 2 and 2.5): llama's layers with biases on query, key and value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.models import decoder
from engine.models.base import TensorSpec, decoder_tensors, qkv_biases

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.models.decoder import Decoder


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """List every tensor a qwen2 file may hold."""
    return {**decoder_tensors(config), **qkv_biases(config, required=True)}


def compose(d: Decoder) -> None:
    """Write the layers, from token ids to the residual stream.

    Rope pairs the two halves of a head.
    """
    decoder.embedding(d)
    for layer in range(d.config.n_layers):
        decoder.self_attention(d, layer, neighbours=False)
        decoder.feed_forward(d, layer)
