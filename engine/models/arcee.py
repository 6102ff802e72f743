"""The arcee architecture (AFM): llama's layers with a feed-forward that squares what is above zero and has no gate."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer
from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, rope_factors


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(attention, replace(feed_forward, gate="relu squared", has_no_gate=True))


ARCHITECTURE = Architecture(
    reading.decoder(_layer, neighbours=True, factors="rope_freqs.weight"), all_of(decoder_tensors, rope_factors)
)
