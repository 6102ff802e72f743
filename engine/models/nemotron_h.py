"""The nemotron_h architecture (Nemotron H, Nano 2): each layer is Mamba-2, attention or a squared feed-forward."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from engine.config import Attention, Dense, Layer
from engine.models import decoder, reading, recurrent
from engine.models.base import Architecture, decoder_tensors, other_biases

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.gguf.hyperparameters import Hyperparameters
    from engine.weights.weights import TensorSpec

NORM = "attn_norm"
"""The only norm of a layer, whatever the layer is."""


def _read(read: Hyperparameters) -> ModelConfig:
    """A layer with a width of feed-forward is that, one with key heads attends without rope, others are recurrent."""
    mamba2 = recurrent.mamba2_of(read)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        if feed_forward.hidden_dim:
            return Layer(None, replace(feed_forward, gate="relu squared", has_no_gate=True))
        return Layer(replace(attention, rope=None) if attention.n_kv_heads else mamba2, None)

    return reading.decoder_config(
        read,
        layer,
        neighbours=False,
        eps_name=reading.LAYER_EPS if read.raw(reading.RMS_EPS) is None else reading.RMS_EPS,
        is_hybrid=True,
        has_bare_mixers=True,
        has_predictors=True,
    )


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    tensors = {**decoder_tensors(config), **other_biases(config)}
    return {name.replace("ffn_norm", NORM): spec for name, spec in tensors.items()}


ARCHITECTURE = Architecture(_read, _tensors, partial(decoder.all_layers, ffn_norm=NORM))
