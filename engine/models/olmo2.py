"""Architecture olmo2 (OLMo 2 and 3): norms after the branches, and over all heads of queries and of
keys."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Rope
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

PERIOD = 4
"""Period of layers with full attention if the file does not give it; OLMo 2 has no windows."""


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of a head, and is never stretched in layers
    with a window."""
    window = reading.window_or_none(read)
    slides = reading.sliding_layers(read, PERIOD)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        mixer = replace(attention, whole_norms=True)
        if window is not None and slides[number]:
            assert attention.rope is not None
            local = Rope(attention.rope.theta, attention.rope.dim, attention.rope.neighbours)
            mixer = replace(mixer, window=window, rope=local)
        return Layer(mixer, feed_forward, norm_before=False, norm_after=True)

    return reading.decoder_config(read, layer, neighbours=False)


ARCHITECTURE = Architecture(_read, decoder_tensors)
