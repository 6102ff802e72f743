"""Architecture gemma3 (Gemma 3, text): windows alternate with full attention, each with its own
RoPE."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Rope
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

PERIOD = 6
"""Period of layers with full attention if the file does not give it."""
LAYERS_OF_27B = 62
"""Number of layers of the model that scales queries by its width instead of that of a head."""


def read_config(read: Hyperparameters, is_encoder: bool = False) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of a head, and is never stretched in layers
    with a window."""
    dim = reading.width(read)
    window = reading.window_or_none(read)
    slides = reading.sliding_layers(read, PERIOD)
    theta = read.positive("rope.freq_base_swa", 10000.0)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        rope = attention.rope
        assert rope is not None
        if len(slides) != LAYERS_OF_27B:
            scale = attention.scale
        else:
            scale = (dim / attention.n_heads) ** -0.5
        mixer = replace(
            attention,
            head_norms=True,
            scale=scale,
            soft_cap=read.positive_or_none(reading.SCORE_CAP),
        )
        if window is not None and slides[number]:
            mixer = replace(mixer, window=window, rope=Rope(theta, rope.dim, rope.neighbours))
        return Layer(mixer, replace(feed_forward, gate="gelu"), norm_after=True)

    return reading.decoder_config(
        read,
        layer,
        neighbours=False,
        is_encoder=is_encoder,
        embedding_scale=dim**0.5,
        logit_soft_cap=read.positive(reading.LOGIT_CAP)
        if read.number(reading.LOGIT_CAP, 0.0)
        else None,
    )


ARCHITECTURE = Architecture(read_config, decoder_tensors)
