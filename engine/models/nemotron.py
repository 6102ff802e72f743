"""The nemotron architecture (Nemotron 4, Minitron): LayerNorm, and a squared feed-forward without a gate."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    norm_biases,
    optional_other_biases,
    optional_qkv_biases,
)


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(attention, replace(feed_forward, gate="relu squared", has_no_gate=True))


ARCHITECTURE = Architecture(
    reading.decoder(_layer, neighbours=False, layer_norm=True),
    all_of(decoder_tensors, norm_biases, optional_qkv_biases, optional_other_biases),
)
