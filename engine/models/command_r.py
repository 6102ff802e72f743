"""Architecture command-r (Command R and R+, Aya): parallel attention and feed-forward from one
LayerNorm."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

LAYERS_OF_PLUS = 64
"""Number of layers from which models have a LayerNorm for each head."""


def _read(read: Hyperparameters) -> ModelConfig:
    has_norms = read.integer("block_count", 1, reading.MAX_LAYERS) >= LAYERS_OF_PLUS
    layers = reading.layer_maker(mixer={"head_layer_norms": has_norms}, side_by_side=True)
    scale = reading.multiplier(read, "logit_scale")
    return reading.decoder_config(read, layers, neighbours=True, layer_norm=True, logit_scale=scale)


ARCHITECTURE = Architecture(_read, decoder_tensors)
