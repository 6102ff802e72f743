"""The deepseek and bailingmoe architectures (DeepSeek MoE 16B; Ling Lite, Plus 1): experts next to shared ones."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, decoder_tensors, optional_qkv_biases, rope_factors


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope turns neighbouring elements; the first layers may have no experts."""
    first = reading.leading_dense(read)
    scale, norm = reading.multiplier(read, "expert_weights_scale"), read.flag("expert_weights_norm", default=False)

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        if number < first:
            return Layer(attention, dense)
        width = reading.expert_width(read)
        shared = Dense(width * read.integer("expert_shared_count", 1, reading.MAX_USED))
        found = reading.experts(read, width, Router(renormalised=norm, scale=scale))
        return Layer(attention, replace(found, shared=shared))

    return reading.decoder_config(read, layer, neighbours=True, factors="rope_freqs.weight", has_experts=True)


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, optional_qkv_biases, rope_factors))
