"""The plamo architecture (PLaMo 13B): attention and feed-forward side by side from one norm."""

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(attention, feed_forward, side_by_side=True)


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the two halves of a head."""
    return reading.decoder_config(read, _layer, neighbours=False)


ARCHITECTURE = Architecture(_read, decoder_tensors)
