"""The exaone4 architecture (EXAONE 4): norms after the branches alone; the 32B has windows, and
rope only there."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, rope_factors

LAYERS_OF_32B = 64
WINDOW = 4096
PERIOD = 4
"""Of the 32B, where the file does not say."""


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the two halves of a head, of queries and keys that are normed."""
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
