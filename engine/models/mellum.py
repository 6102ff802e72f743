"""Architecture mellum (Mellum 2): qwen3moe's layers, some of them with a window."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Rope, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

PERIOD = 4
"""Period of layers with full attention if the file does not give it."""


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of a head, and is never stretched in layers
    with a window."""
    window = reading.window_or_none(read)
    slides = reading.sliding_layers(read, PERIOD)

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        router = Router(renormalised=True, scale=reading.multiplier(read, "expert_weights_scale"))
        mixer = replace(attention, head_norms=True)
        if window is not None and slides[number] and mixer.rope is not None:
            local = Rope(mixer.rope.theta, mixer.rope.dim, mixer.rope.neighbours)
            mixer = replace(mixer, window=window, rope=local)
        return Layer(mixer, reading.experts(read, reading.expert_width(read, dense), router))

    return reading.decoder_config(read, layer, neighbours=False, has_experts=True)


ARCHITECTURE = Architecture(_read, decoder_tensors)
