"""The plamo architecture (PLaMo 13B): attention and feed-forward side by side from one norm."""

from engine.config import Attention, Dense, Layer
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(attention, feed_forward, side_by_side=True)


ARCHITECTURE = Architecture(reading.decoder(_layer, neighbours=False), decoder_tensors)
