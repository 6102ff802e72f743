"""Architecture smallthinker (SmallThinker 4B-A0.6B, 21B-A3B): experts that are chosen before
attention."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

PERIOD = 4
"""Period of layers with full attention and without RoPE, beginning with the first, in a model with
windows."""


def _read(read: Hyperparameters) -> ModelConfig:
    window = reading.window_or_none(read)
    slides = reading.sliding_layers(read, PERIOD, dense=0)
    theta = read.positive_or_none("rope.freq_base_swa")

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        if window is not None:
            if number % PERIOD:
                rope = attention.rope
            else:
                rope = None
            if slides[number]:
                if not (theta is None or rope is None):
                    rope = replace(rope, theta=theta)
                attention = replace(attention, window=window)
            attention = replace(attention, rope=rope)
        router = replace(reading.keyed_router(read), renormalised=True)
        experts = reading.experts(read, reading.expert_width(read, dense), router, "relu")
        return Layer(attention, replace(experts, routes_first=True))

    return reading.decoder_config(read, layer, neighbours=False, has_experts=True)


ARCHITECTURE = Architecture(_read, decoder_tensors)
