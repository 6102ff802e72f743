"""The llama architecture: Llama 2 and 3, Mistral, TinyLlama, SmolLM2 and what else is converted under that name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.models.base import TensorSpec, decoder_tensors, qkv_biases

if TYPE_CHECKING:
    from engine.config import ModelConfig


def expected_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """List every tensor a llama file may hold; ``rope_freqs`` are Llama 3.1's divisors, one per rotated pair."""
    return {
        **decoder_tensors(config),
        **qkv_biases(config, required=False),
        "rope_freqs.weight": TensorSpec((config.rope_dim // 2,), required=False),
    }
