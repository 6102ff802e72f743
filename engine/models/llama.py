"""The llama architecture: Llama 2 and 3, Mistral, Mixtral, TinyLlama, SmolLM2 and what else is converted so."""

from engine.config import Attention, Dense, Layer, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, other_biases, qkv_biases, rope_factors
from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope turns neighbouring elements: the converter has permuted q and k so. Llama 3.1 divides frequencies."""
    has_experts = read.integer("expert_count", 0, reading.MAX_EXPERTS, default=0) > 1  # 1 means none, too

    def mixtral_layer(number: int, attention: Attention, dense: Dense) -> Layer:
        return Layer(attention, reading.experts(read, dense.hidden_dim, Router(renormalised=True)))

    return reading.decoder_config(
        read,
        mixtral_layer if has_experts else reading.plain_layer,
        neighbours=True,
        factors="rope_freqs.weight",
        has_experts=True,
    )


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    biases = {**qkv_biases(config, required=False), **other_biases(config)}
    return {**decoder_tensors(config), **biases, **rope_factors(config)}


ARCHITECTURE = Architecture(_read, _tensors)
