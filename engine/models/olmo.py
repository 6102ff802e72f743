"""The olmo architecture (OLMo 1): LayerNorm without weights; some models' queries, keys and values are cut."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors


def _read(read: Hyperparameters) -> ModelConfig:
    bound = reading.number_or_none(read, "attention.clamp_kqv")

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        return Layer(replace(attention, bound=bound), feed_forward)

    return reading.decoder_config(read, layer, neighbours=True, layer_norm=True, bare_norms=True)


ARCHITECTURE = Architecture(_read, decoder_tensors)
