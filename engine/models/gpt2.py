"""Architectures gpt2 and starcoder (GPT-2, Cerebras-GPT; StarCoder 1): learned positions, biases
everywhere."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    fused_tensors,
    norm_biases,
    other_biases,
    qkv_biases,
)


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; each position of the trained context has its own vector."""
    layers = reading.layer_maker(mixer={"rope": None}, form=reading.UNGATED)
    n_positions = read.integer("context_length", 1, reading.MAX_CONTEXT_LENGTH)
    return reading.decoder_config(
        read, layers, neighbours=False, layer_norm=True, learned_positions=n_positions
    )


ARCHITECTURE = Architecture(_read, all_of(fused_tensors, norm_biases, qkv_biases, other_biases))
