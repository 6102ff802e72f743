"""The llama architecture: Llama 2 and 3, Mistral, Mixtral, TinyLlama, SmolLM2 and what else is
converted so."""

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
    """Rope turns neighbouring elements: the converter has permuted q and k so.

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
