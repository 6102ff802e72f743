"""The refact architecture (Refact 1.6B): llama's layers without rope, whose scores fall with distance."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer
from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, optional_qkv_biases

ALIBI = 8.0


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(replace(attention, rope=None, alibi=ALIBI), feed_forward)


ARCHITECTURE = Architecture(reading.decoder(_layer, neighbours=False), all_of(decoder_tensors, optional_qkv_biases))
