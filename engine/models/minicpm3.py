"""Architecture minicpm3 (MiniCPM 3 4B): minicpm's multipliers, and latent attention."""

from engine.config import ModelConfig, Rope
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, rope_factors
from engine.models.deepseek2 import QUERY_RANK, head_width, joint_attention
from engine.models.minicpm import BASE_WIDTH, DEPTH_SCALE, EMBEDDING_SCALE


def _rope(read: Hyperparameters, turned: int) -> Rope:
    """Return the RoPE; it pairs the two halves, and files have divisors of frequencies without a
    key for them."""
    return reading.longrope(read, reading.rope(read, turned, neighbours=False))


def _read(read: Hyperparameters) -> ModelConfig:
    mixer = joint_attention(read, _rope, head_width(read, QUERY_RANK))
    n_layers = read.integer("block_count", 1, reading.MAX_LAYERS)
    dim = reading.width(read)
    return reading.decoder_config(
        read,
        neighbours=False,
        mixers=[mixer] * n_layers,
        embedding_scale=EMBEDDING_SCALE,
        residual_scale=DEPTH_SCALE / n_layers**0.5,
        logit_scale=BASE_WIDTH / dim,
    )


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, rope_factors))
