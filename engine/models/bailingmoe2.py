"""The bailingmoe2 architecture (Ling and Ring 2.0): norms of heads, groups of experts, and a shared one."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, choice_biases, decoder_tensors, fused_first
from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the two halves of what it turns; the first layers have no experts."""
    reading.refuse_prediction_layers(read)
    first = reading.leading_dense(read)

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        mixer = replace(attention, head_norms=True)
        if number < first:
            return Layer(mixer, dense)
        width = reading.expert_width(read)
        shared = (reading.shared_width(read) or width) * read.integer("expert_shared_count", 1, reading.MAX_USED)
        return Layer(mixer, replace(reading.experts(read, width, reading.keyed_router(read)), shared=Dense(shared)))

    return reading.decoder_config(read, layer, neighbours=False, has_experts=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**fused_first(decoder_tensors(config)), **choice_biases(config)}


ARCHITECTURE = Architecture(_read, _tensors)
