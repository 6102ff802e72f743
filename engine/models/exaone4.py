"""Architecture exaone4 (EXAONE 4): norms only after branches; the 32B has windows, and RoPE only in
these layers."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, rope_factors

LAYERS_OF_32B = 64
WINDOW = 4096
PERIOD = 4
"""Period of layers without a window in the 32B if the file does not give it."""


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of normed heads."""
    slides = reading.sliding_layers(read, PERIOD)
    if len(slides) == LAYERS_OF_32B:
        window = reading.window(read, WINDOW)
    else:
        window = None

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        mixer = replace(attention, head_norms=True)
        if window is not None:
            if slides[number]:
                mixer = replace(mixer, window=window)
            else:
                mixer = replace(mixer, rope=None)
        return Layer(mixer, feed_forward, norm_before=False, norm_after=True)

    return reading.decoder_config(read, layer, neighbours=False, factors="rope_freqs.weight")


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, rope_factors))
