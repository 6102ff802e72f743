"""Architecture gemma (Gemma 1, CodeGemma): llama's layers with a scaled embedding and GELU."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors


def _read(read: Hyperparameters) -> ModelConfig:
    layers = reading.layer_maker(form={"gate": "gelu"})
    scale = reading.width(read) ** 0.5
    return reading.decoder_config(read, layers, neighbours=False, embedding_scale=scale)


ARCHITECTURE = Architecture(_read, decoder_tensors)
