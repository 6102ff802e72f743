"""Architecture qwen35 (Qwen 3.5, 3.6): gated delta nets, and gated attention in every fourth
layer."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from engine.config import (
    Attention,
    DeltaNet,
    Dense,
    Experts,
    FeedForward,
    Layer,
    ModelConfig,
    Router,
)
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading, recurrent, steps
from engine.models.base import Architecture, decoder_tensors
from engine.weights.weights import TensorSpec

NORM = "post_attention_norm"
"""Norm before the feed-forward; its name says "after attention"."""
PERIOD = 4
"""Period of layers with attention if the file does not give it."""


def recurrent_layers(read: Hyperparameters) -> list[bool]:
    """Return which layers are recurrent: those of a list, or all except the last of each period."""
    key = "attention.recurrent_layers"
    n_blocks = read.integer("block_count", 1, reading.MAX_LAYERS)
    value = read.raw(key)
    if value is None:
        period = read.integer("full_attention_interval", 1, reading.MAX_LAYERS, default=PERIOD)
        return [(number + 1) % period != 0 for number in range(n_blocks)]
    if not isinstance(value, np.ndarray) or value.dtype != np.bool_ or len(value) != n_blocks:
        raise read.fail(f"{read.key(key)} must be {n_blocks} bools")
    return [bool(flag) for flag in value]


def qwen35_config(
    read: Hyperparameters,
    delta_net: DeltaNet | None = None,
    feed_forward: Callable[[Dense], FeedForward] | None = None,
) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of a part of a head.

    Args:
        delta_net: Delta net of another family; None for the usual one.
        feed_forward: Function that returns the replacement of a dense feed-forward; None to
            keep it.
    """
    is_recurrent = recurrent_layers(read)
    recurrent_mixer = delta_net or recurrent.delta_net_of(read)

    def attending(number: int, attention: Attention, dense: Dense) -> Layer:
        if feed_forward:
            form = feed_forward(dense)
        else:
            form = dense
        mixer = reading.with_sections(read, attention)
        return Layer(replace(mixer, head_norms=True, gated=True), form)

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        attending_layer = attending(number, attention, dense)
        if is_recurrent[number]:
            return Layer(recurrent_mixer, attending_layer.feed_forward)
        return attending_layer

    return reading.decoder_config(
        read,
        layer,
        neighbours=False,
        has_predictors=True,
        predictor=attending,
        has_experts=feed_forward is not None,
    )


def qwen35_experts(read: Hyperparameters) -> Callable[[Dense], Experts]:
    """Return a function that returns the experts of a layer, given its dense feed-forward."""

    def experts(dense: Dense) -> Experts:
        router = Router(renormalised=True, scale=reading.multiplier(read, "expert_weights_scale"))
        routed = reading.experts(read, reading.expert_width(read, dense), router)
        shared = Dense(reading.shared_width(read) or dense.hidden_dim)
        return replace(routed, shared=shared, shared_is_gated=True)

    return experts


def qwen35_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return the tensors of the layers, with the name of these families for the norm before the
    feed-forward."""
    return {name.replace("ffn_norm", NORM): spec for name, spec in decoder_tensors(config).items()}


compose = partial(steps.all_layers, ffn_norm=NORM)
ARCHITECTURE = Architecture(qwen35_config, qwen35_tensors, compose)
