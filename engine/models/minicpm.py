"""Architecture minicpm (MiniCPM 1 to 4, dense): granite's multipliers, which older files omit."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    optional_other_biases,
    rope_factors,
)

EMBEDDING_SCALE = 12.0
DEPTH_SCALE = 1.4
BASE_WIDTH = 256
"""Width of the published base model: branches are multiplied by DEPTH_SCALE / sqrt(layers), logits
by BASE_WIDTH / width."""


def _read(read: Hyperparameters) -> ModelConfig:
    n_layers = read.integer("block_count", 1, reading.MAX_LAYERS)
    dim = reading.width(read)
    return reading.decoder_config(
        read,
        neighbours=True,
        factors="rope_freqs.weight",
        embedding_scale=reading.multiplier(read, "embedding_scale", EMBEDDING_SCALE),
        residual_scale=reading.multiplier(read, "residual_scale", DEPTH_SCALE / n_layers**0.5),
        logit_scale=1.0 / read.positive("logit_scale", BASE_WIDTH / dim),
    )


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, optional_other_biases, rope_factors))
