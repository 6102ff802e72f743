"""The plm architecture (PLM 1.8B): latent attention, and a feed-forward that squares what is above zero."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Rope
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors
from engine.models.deepseek2 import joint_attention


def _rope(read: Hyperparameters, turned: int) -> Rope:
    return reading.rope(read, turned, neighbours=True)


def _layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
    return Layer(attention, replace(feed_forward, gate="relu squared", has_no_gate=True))


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs neighbours; queries are made of the token itself."""
    mixers = [joint_attention(read, _rope)] * read.integer("block_count", 1, reading.MAX_LAYERS)
    return reading.decoder_config(read, _layer, neighbours=True, mixers=mixers)


ARCHITECTURE = Architecture(_read, decoder_tensors)
