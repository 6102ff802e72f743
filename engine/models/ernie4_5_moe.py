"""Architecture ernie4_5-moe (ERNIE 4.5 21B-A3B): ernie4_5's layers, most with experts and a shared
expert."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    choice_biases,
    decoder_tensors,
    optional_qkv_biases,
    output_biases,
)


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE rotates neighbouring elements.

    Only each ``step``-th layer has experts, and none of the first ones.
    """
    first = reading.leading_dense(read)
    step = read.integer("interleave_moe_layer_step", 1, reading.MAX_LAYERS)

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        if number < first or (number + 1) % step:
            return Layer(attention, dense)
        experts = reading.experts(read, reading.expert_width(read), Router(renormalised=True))
        width = reading.shared_width(read)
        return Layer(attention, replace(experts, shared=Dense(width) if width else None))

    return reading.decoder_config(read, layer, neighbours=True, has_experts=True)


ARCHITECTURE = Architecture(
    _read, all_of(decoder_tensors, optional_qkv_biases, output_biases, choice_biases)
)
