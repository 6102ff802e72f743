"""Architecture qwen (Qwen 1): fused projections with biases."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer
from engine.models import reading
from engine.models.base import Architecture, all_of, fused_tensors, qkv_biases


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    """Return a layer; the feed-forward width in files is that of gate and up together."""
    return Layer(attention, replace(feed_forward, hidden_dim=max(1, feed_forward.hidden_dim // 2)))


ARCHITECTURE = Architecture(
    reading.decoder(_layer, neighbours=False), all_of(fused_tensors, qkv_biases)
)
