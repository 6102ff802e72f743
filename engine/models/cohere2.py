"""Architecture cohere2 (Command R7B): both branches from one LayerNorm; windows, and RoPE only in
these layers."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, rope_factors

PERIOD = 4
"""Period of layers without a window if the file does not give it."""


def _read(read: Hyperparameters) -> ModelConfig:
    window = reading.window(read)
    slides = reading.sliding_layers(read, PERIOD)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        if slides[number]:
            mixer = replace(attention, window=window)
        else:
            mixer = replace(attention, rope=None)
        return Layer(mixer, feed_forward, side_by_side=True)

    scale = reading.multiplier(read, "logit_scale", None)
    return reading.decoder_config(
        read,
        layer,
        neighbours=True,
        factors="rope_freqs.weight",
        layer_norm=True,
        logit_scale=scale,
    )


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, rope_factors))
