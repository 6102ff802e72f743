"""Architecture lfm2 (LFM 2): short convolutions in most layers, attention with normed heads in the
others."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from engine.config import Attention, Dense, FeedForward, Layer, ModelConfig, ShortConvolution
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading, recurrent, steps
from engine.models.base import Architecture, decoder_tensors

LAST_NORM = "token_embd_norm"
"""Name of the norm before the output head."""


def lfm2_config(
    read: Hyperparameters, feed_forward: Callable[[int, Dense], FeedForward] | None = None
) -> ModelConfig:
    """Read the configuration; layers without key heads are convolutions, and RoPE pairs the two
    halves of a head.

    Args:
        feed_forward: Function that returns the replacement of the dense feed-forward of layer
            i; None to keep it.
    """
    dim = reading.width(read)
    taps = recurrent.taps(read, "shortconv.l_cache")
    window = reading.window_or_none(read)

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        if feed_forward:
            form = feed_forward(number, dense)
        else:
            form = dense
        if not attention.n_kv_heads:
            return Layer(ShortConvolution(dim, taps), form)
        return Layer(replace(attention, head_norms=True, window=window), form)

    has_experts = feed_forward is not None
    return reading.decoder_config(
        read, layer, neighbours=False, is_hybrid=True, has_experts=has_experts
    )


ARCHITECTURE = Architecture(
    lfm2_config,
    partial(decoder_tensors, norm_name=LAST_NORM),
    head=partial(steps.output_head, norm_name=LAST_NORM),
)
