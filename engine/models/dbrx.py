"""Architecture dbrx (DBRX): LayerNorm without biases, clamped queries, keys and values, and
experts."""

from dataclasses import replace
from functools import partial

from engine.config import Attention, Dense, Layer, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading, steps
from engine.models.base import Architecture, fused_tensors
from engine.weights.weights import TensorSpec

NORM = "attn_output_norm"
"""Norm before the feed-forward; its name says "after attention"."""


def _read(read: Hyperparameters) -> ModelConfig:
    bound = read.positive("attention.clamp_kqv")

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        router = Router(renormalised=True, scale=reading.multiplier(read, "expert_weights_scale"))
        return Layer(
            replace(attention, bound=bound), reading.experts(read, dense.hidden_dim, router)
        )

    return reading.decoder_config(read, layer, neighbours=False, layer_norm=True, has_experts=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {name.replace("ffn_norm", NORM): spec for name, spec in fused_tensors(config).items()}


ARCHITECTURE = Architecture(_read, _tensors, partial(steps.all_layers, ffn_norm=NORM))
