"""The lfm2 architecture (LFM 2): short convolutions in most layers, attention with normed heads in the others."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from engine.config import Attention, Dense, Layer, ShortConvolution
from engine.models import decoder, reading, recurrent
from engine.models.base import Architecture, decoder_tensors

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.gguf.hyperparameters import Hyperparameters

LAST_NORM = "token_embd_norm"
"""Name of the norm before the output head."""


def _read(read: Hyperparameters) -> ModelConfig:
    """Layers without key heads are convolutions; rope pairs the two halves of a head."""
    dim, taps = reading.width(read), recurrent.taps(read, "shortconv.l_cache")
    window = reading.window_or_none(read)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        if not attention.n_kv_heads:
            return Layer(ShortConvolution(dim, taps), feed_forward)
        return Layer(replace(attention, head_norms=True, window=window), feed_forward)

    return reading.decoder_config(read, layer, neighbours=False, is_hybrid=True)


ARCHITECTURE = Architecture(
    _read,
    partial(decoder_tensors, norm_name=LAST_NORM),
    head=partial(decoder.output_head, norm_name=LAST_NORM),
)
