"""The bailingmoe2 architecture (Ling and Ring 2.0): norms of heads, groups of experts, and a shared one."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, choice_biases, fused_tensors


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


ARCHITECTURE = Architecture(_read, all_of(fused_tensors, choice_biases))
