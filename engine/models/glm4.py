"""The glm4 architecture (GLM 4, dense): norms before and after the branches, gate and up in one tensor."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer
from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, optional_qkv_biases


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(attention, replace(feed_forward, is_fused=True), norm_after=True)


ARCHITECTURE = Architecture(reading.decoder(_layer, neighbours=True), all_of(decoder_tensors, optional_qkv_biases))
