"""The llama architecture: Llama 2 and 3, Mistral, TinyLlama, SmolLM2 and what else is converted under that name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.models import decoder
from engine.models.base import TensorSpec, decoder_tensors, qkv_biases

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.models.decoder import Decoder


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """List every tensor a llama file may hold; ``rope_freqs`` are Llama 3.1's divisors, one per rotated pair."""
    return {
        **decoder_tensors(config),
        **qkv_biases(config, required=False),
        "rope_freqs.weight": TensorSpec((config.rope_dim // 2,), required=False),
    }


def compose(d: Decoder) -> None:
    """Write the layers, from token ids to the residual stream.

    Rope turns neighbouring elements: the converter has permuted q and k so.
    """
    decoder.embedding(d)
    for layer in range(d.config.n_layers):
        decoder.self_attention(d, layer, neighbours=True)
        decoder.feed_forward(d, layer)
