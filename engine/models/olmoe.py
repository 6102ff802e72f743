"""Architecture olmoe (OLMoE 1B-7B): norms over all heads of queries and of keys, and experts."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of a head, and the weights of experts are
    not normalised."""

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        return Layer(
            replace(attention, whole_norms=True), reading.experts(read, dense.hidden_dim, Router())
        )

    return reading.decoder_config(read, layer, neighbours=False, has_experts=True)


ARCHITECTURE = Architecture(_read, decoder_tensors)
