"""Architecture llama: Llama 2 and 3, Mistral, Mixtral, TinyLlama, SmolLM2 and other models
converted to it."""

from engine.config import Attention, Dense, Layer, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    optional_other_biases,
    optional_qkv_biases,
    rope_factors,
)


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE rotates neighbouring elements, because the converter permutes q
    and k.

    Llama 3.1 divides frequencies.
    """
    has_experts = (
        read.integer("expert_count", 0, reading.MAX_EXPERTS, default=0) > 1
    )  # 1 means none, too

    def mixtral_layer(number: int, attention: Attention, dense: Dense) -> Layer:
        return Layer(attention, reading.experts(read, dense.hidden_dim, Router(renormalised=True)))

    return reading.decoder_config(
        read,
        mixtral_layer if has_experts else None,
        neighbours=True,
        factors="rope_freqs.weight",
        has_experts=True,
    )


ARCHITECTURE = Architecture(
    _read, all_of(decoder_tensors, optional_qkv_biases, optional_other_biases, rope_factors)
)
