"""The gpt2 and starcoder architectures (GPT-2, Cerebras-GPT; StarCoder 1): learned positions, biases everywhere."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, fused_tensors, norm_biases, other_biases, qkv_biases


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(replace(attention, rope=None), replace(feed_forward, gate="gelu", has_no_gate=True))


def _read(read: Hyperparameters) -> ModelConfig:
    """Each position of the trained context has a vector of its own."""
    n_positions = read.integer("context_length", 1, reading.MAX_CONTEXT_LENGTH)
    return reading.decoder_config(read, _layer, neighbours=False, layer_norm=True, learned_positions=n_positions)


ARCHITECTURE = Architecture(_read, all_of(fused_tensors, norm_biases, qkv_biases, other_biases))
