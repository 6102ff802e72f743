"""The gemma3 architecture (Gemma 3, text): windows that alternate with full attention, each with a
rope of its own."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Rope
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

PERIOD = 6
"""Every sixth layer attends to everything, unless the file says otherwise."""
LAYERS_OF_27B = 62
"""The model whose queries are scaled by the width of the model instead of the head's."""


def read_config(read: Hyperparameters, is_encoder: bool = False) -> ModelConfig:
    """Rope pairs the two halves of a head; that of windows is never stretched."""
    dim = reading.width(read)
    window = reading.window_or_none(read)
    slides = reading.sliding_layers(read, PERIOD)
    theta = read.positive("rope.freq_base_swa", 10000.0)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        whole = attention.rope
        assert whole is not None
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
            mixer = replace(mixer, window=window, rope=Rope(theta, whole.dim, whole.neighbours))
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
