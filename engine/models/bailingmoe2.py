"""Architecture bailingmoe2 (Ling and Ring 2.0): norms of heads, groups of experts, and a shared
expert."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, choice_biases, fused_tensors


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of its elements, and the first layers have
    no experts."""
    reading.refuse_prediction_layers(read)
    layers = reading.next_to_shared(
        read,
        reading.keyed_router(read),
        {"head_norms": True},
        part_width=reading.shared_width(read),
    )
    return reading.decoder_config(read, layers, neighbours=False, has_experts=True)


ARCHITECTURE = Architecture(_read, all_of(fused_tensors, choice_biases))
