"""Architecture hunyuan-dense (Hunyuan 0.5B to 7B): queries and keys are normed after RoPE."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    optional_other_biases,
    optional_qkv_biases,
)

MAX_ALPHA = 1e6


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of a head.

    Its base grows with ``alpha`` if the file has not applied it already.
    """
    alpha = read.number("rope.scaling.alpha", 0.0)
    if alpha > MAX_ALPHA:
        raise read.fail(
            f"{read.key('rope.scaling.alpha')} is {alpha}: must be at most {MAX_ALPHA:g}"
        )

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        rope = attention.rope
        assert rope is not None
        if alpha > 0:
            theta = rope.theta * alpha ** (attention.key_dim / (attention.key_dim - 2))
            rope = replace(rope, theta=theta)
        return Layer(
            replace(attention, rope=rope, head_norms=True, norms_turned=True), feed_forward
        )

    return reading.decoder_config(read, layer, neighbours=False)


ARCHITECTURE = Architecture(
    _read, all_of(decoder_tensors, optional_qkv_biases, optional_other_biases)
)
