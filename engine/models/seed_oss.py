"""Architecture seed_oss (Seed-OSS): qwen2's layers with another name of the norm before the
feed-forward."""

from functools import partial

from engine.config import ModelConfig
from engine.models import reading, steps
from engine.models.base import Architecture, decoder_tensors, optional_qkv_biases
from engine.weights.weights import TensorSpec

NORM = "post_attention_norm"
"""Norm before the feed-forward; its name says "after attention"."""


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    tensors = {**decoder_tensors(config), **optional_qkv_biases(config)}
    return {name.replace("ffn_norm", NORM): spec for name, spec in tensors.items()}


ARCHITECTURE = Architecture(
    reading.decoder(neighbours=False), _tensors, partial(steps.all_layers, ffn_norm=NORM)
)
