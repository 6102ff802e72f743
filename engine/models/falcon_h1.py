"""Architecture falcon-h1 (Falcon H1): attention and Mamba-2 in parallel in each layer."""

from dataclasses import replace

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading, recurrent
from engine.models.base import Architecture, decoder_tensors, optional_other_biases, rope_factors
from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of a head.

    The weights of the file include the multipliers of the model.
    """
    layers = reading.layer_maker(second_mixer=recurrent.mamba2_of(read))
    return reading.decoder_config(read, layers, neighbours=False, factors="rope_freqs.weight")


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return the tensors; files name the norm before the feed-forward with or without
    ``.weight``."""
    tensors = {**decoder_tensors(config), **optional_other_biases(config), **rope_factors(config)}
    for number in range(config.n_layers):
        bare = f"blk.{number}.ffn_norm"
        spec = tensors[bare + ".weight"]
        tensors[bare + ".weight"] = replace(spec, instead_of=bare)
        tensors[bare] = replace(spec, instead_of=bare + ".weight")
    return tensors


ARCHITECTURE = Architecture(_read, _tensors)
