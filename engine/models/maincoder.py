"""The maincoder architecture (Maincoder 1B): heads are normed after they are turned."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(replace(attention, head_norms=True, norms_turned=True), feed_forward)


ARCHITECTURE = Architecture(reading.decoder(_layer, neighbours=True), decoder_tensors)
