"""The qwen3, qwen3vl and openelm architectures: llama's layers with every head's query and key normed before rope."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(replace(attention, head_norms=True), feed_forward)


ARCHITECTURE = Architecture(reading.decoder(_layer, neighbours=False), decoder_tensors)
