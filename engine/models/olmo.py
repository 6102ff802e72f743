"""Architecture olmo (OLMo 1): LayerNorm without weights; some models clamp queries, keys and
values."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors


def _read(read: Hyperparameters) -> ModelConfig:
    bound = reading.number_or_none(read, "attention.clamp_kqv")
    layers = reading.layer_maker(mixer={"bound": bound})
    return reading.decoder_config(read, layers, neighbours=True, layer_norm=True, bare_norms=True)


ARCHITECTURE = Architecture(_read, decoder_tensors)
