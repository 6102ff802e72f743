"""Architecture muse-glimmer (Muse Glimmer 30B): layers with windows have RoPE, layers with full
attention have none; gates and norms."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

PERIOD = 4
EPS_AFTER = 1e-8
"""Epsilon of the norms after branches. Every fourth layer has full attention, unless the file says
otherwise."""


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE rotates neighbouring elements of layers with a window, the
    others have none."""
    window = reading.window(read)
    slides = reading.sliding_layers(read, PERIOD)
    theta = read.positive_or_none("rope.freq_base_swa")

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        mixer = replace(attention, rope=None, head_norms=True, gated_apart=True)
        if slides[number] and attention.rope is not None:
            rope = replace(attention.rope, theta=theta or attention.rope.theta)
            mixer = replace(mixer, rope=rope, window=window)
        return Layer(mixer, feed_forward, norm_after=True)

    return reading.decoder_config(
        read,
        layer,
        neighbours=True,
        embedding_norm=True,
        norm_after_eps=EPS_AFTER,
        logit_scale=read.positive("logit_scale"),
        logit_soft_cap=reading.number_or_none(read, reading.LOGIT_CAP),
    )


ARCHITECTURE = Architecture(_read, decoder_tensors)
