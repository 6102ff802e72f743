"""Architecture gpt-oss (GPT-OSS 20B and 120B): a window in every other layer, sinks, and experts
with biases."""

from dataclasses import replace
from functools import partial

from engine.config import Attention, Dense, Layer, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading, steps
from engine.models.base import (
    Architecture,
    decoder_tensors,
    expert_biases,
    output_biases,
    qkv_biases,
)
from engine.weights.weights import TensorSpec

PERIOD = 2
"""Period of layers with full attention if the file does not give it."""
NORM = "post_attention_norm"
"""Norm before the feed-forward; its name says "after attention"."""


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of a head, and is stretched in all
    layers."""
    window = reading.window(read)
    slides = reading.sliding_layers(read, PERIOD)
    theta = read.positive_or_none("rope.freq_base_swa")

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        mixer = replace(attention, sinks=True)
        if slides[number]:
            assert attention.rope is not None
            if theta is None:
                rope = attention.rope
            else:
                rope = replace(attention.rope, theta=theta)
            mixer = replace(mixer, window=window, rope=rope)
        width = reading.expert_width(read)
        return Layer(
            mixer, reading.experts(read, width, Router("softmax of chosen"), "clamped silu")
        )

    return reading.decoder_config(read, layer, neighbours=False, has_experts=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    outputs = {name: replace(spec, required=True) for name, spec in output_biases(config).items()}
    biases = {**qkv_biases(config), **outputs, **expert_biases(config)}
    return {
        name.replace("ffn_norm", NORM): spec
        for name, spec in {**decoder_tensors(config), **biases}.items()
    }


ARCHITECTURE = Architecture(_read, _tensors, partial(steps.all_layers, ffn_norm=NORM))
