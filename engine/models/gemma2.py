"""Architecture gemma2 (Gemma 2): a window in every other layer, and capped scores and logits."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

WINDOW = 4096
PERIOD = 2
SCORE_CAP = 50.0
LOGIT_CAP = 30.0
"""Cap of logits if the file does not give it."""
LAYERS_OF_27B = 46
"""Number of layers of the model that scales queries by its width instead of that of a head."""


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of a head, and layers with a window may
    have another base."""
    dim = reading.width(read)
    window = reading.window(read, WINDOW)
    slides = reading.sliding_layers(read, PERIOD)
    cap = read.positive(reading.SCORE_CAP, SCORE_CAP)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        if len(slides) != LAYERS_OF_27B:
            scale = attention.scale
        else:
            scale = (dim / attention.n_heads) ** -0.5
        mixer = replace(attention, scale=scale, soft_cap=cap)
        if slides[number]:
            assert attention.rope is not None
            theta = read.positive("rope.freq_base_swa", attention.rope.theta)
            mixer = replace(mixer, window=window, rope=replace(attention.rope, theta=theta))
        return Layer(mixer, replace(feed_forward, gate="gelu"), norm_after=True)

    return reading.decoder_config(
        read,
        layer,
        neighbours=False,
        embedding_scale=dim**0.5,
        logit_soft_cap=read.positive(reading.LOGIT_CAP, LOGIT_CAP),
    )


ARCHITECTURE = Architecture(_read, decoder_tensors)
