"""Architecture phimoe (Phi 3.5 MoE): longrope, experts, and biases of norms and projections."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Router
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    decoder_tensors,
    norm_biases,
    optional_qkv_biases,
    output_biases,
    rope_factors,
)
from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the halves of its elements.

    Norms do not subtract the mean, as in llama.cpp; those of the authors do.
    """

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        assert attention.rope is not None
        rope = reading.longrope(read, attention.rope)  # some files do not name the type of scaling
        experts = reading.experts(read, dense.hidden_dim, Router(renormalised=True))
        return Layer(replace(attention, rope=rope), experts)

    return reading.decoder_config(read, layer, neighbours=False, has_experts=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    outputs = {name: replace(spec, required=True) for name, spec in output_biases(config).items()}
    biases = {**optional_qkv_biases(config), **outputs, **norm_biases(config)}
    head = {"output.bias": TensorSpec((config.vocab_size,))}
    return {**decoder_tensors(config), **biases, **head, **rope_factors(config)}


ARCHITECTURE = Architecture(_read, _tensors)
