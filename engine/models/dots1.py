"""The dots1 architecture (dots.llm1): norms of heads, experts, and shared ones."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, choice_biases, decoder_tensors, optional_qkv_biases


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the two halves of a head; the first layers have no experts."""
    first = reading.leading_dense(read)

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        mixer = replace(attention, head_norms=True)
        if number < first:
            return Layer(mixer, dense)
        width = reading.expert_width(read)
        shared = Dense(width * read.integer("expert_shared_count", 1, reading.MAX_USED))
        return Layer(mixer, replace(reading.experts(read, width, reading.keyed_router(read)), shared=shared))

    return reading.decoder_config(read, layer, neighbours=False, has_experts=True)


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, optional_qkv_biases, choice_biases))
