"""Architecture glm4moe (GLM 4.5 Air, 4.6): experts next to a shared expert; some models have norms
of heads."""

from dataclasses import replace
from functools import partial

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.kernels.records import SCORES
from engine.models import reading, steps
from engine.models.base import Architecture, choice_biases, decoder_tensors, optional_qkv_biases
from engine.weights.weights import TensorSpec

NORM = "post_attention_norm"
"""Norm before the feed-forward; its name says "after attention"."""


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs halves of a part of each head, and the first layers have
    no experts."""
    has_norms = any(f"blk.0.attn_{x}_norm.weight" in read.tensors for x in "qk")
    router = reading.keyed_router(read)
    if not read.integer("expert_gating_func", 0, len(SCORES), default=0):
        router = replace(router, score="sigmoid")
    layers = reading.next_to_shared(read, router, {"head_norms": has_norms}, is_width_stated=False)
    return reading.decoder_config(
        read,
        layers,
        neighbours=False,
        has_experts=True,
        has_predictors=True,
        predictor=layers,
    )


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    tensors = {**decoder_tensors(config), **optional_qkv_biases(config), **choice_biases(config)}
    return {name.replace("ffn_norm", NORM): spec for name, spec in tensors.items()}


ARCHITECTURE = Architecture(_read, _tensors, partial(steps.all_layers, ffn_norm=NORM))
