"""Architecture smollm3 (SmolLM 3): llama's layers, every fourth without RoPE."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    optional_other_biases,
    optional_qkv_biases,
)

PERIOD = 4


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    """Return a layer; the last layer of each period has no RoPE."""
    return Layer(
        replace(attention, rope=None) if number % PERIOD == PERIOD - 1 else attention, feed_forward
    )


ARCHITECTURE = Architecture(
    reading.decoder(_layer, neighbours=True),
    all_of(decoder_tensors, optional_qkv_biases, optional_other_biases),
)
