"""Architecture dots1 (dots.llm1): norms of heads, experts, and shared experts."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    choice_biases,
    decoder_tensors,
    optional_qkv_biases,
)


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of a head, and the first layers have no
    experts."""
    layers = reading.next_to_shared(read, reading.keyed_router(read), {"head_norms": True})
    return reading.decoder_config(read, layers, neighbours=False, has_experts=True)


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, optional_qkv_biases, choice_biases))
