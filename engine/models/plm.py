"""Architecture plm (PLM 1.8B): latent attention, and a feed-forward with squared ReLU."""

from functools import partial

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors
from engine.models.deepseek2 import joint_attention


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs neighbours, and queries are not compressed."""
    mixer = joint_attention(read, partial(reading.rope, neighbours=True))
    mixers = [mixer] * read.integer("block_count", 1, reading.MAX_LAYERS)
    return reading.decoder_config(
        read, reading.layer_maker(form=reading.SQUARED), neighbours=True, mixers=mixers
    )


ARCHITECTURE = Architecture(_read, decoder_tensors)
