"""The falcon-h1 architecture (Falcon H1): attention and Mamba-2 side by side in every layer."""

from dataclasses import replace

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading, recurrent
from engine.models.base import Architecture, decoder_tensors, optional_other_biases, rope_factors
from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the two halves of a head; what the model multiplies with is part of the file's
    weights."""
    layers = reading.layer_maker(second_mixer=recurrent.mamba2_of(read))
    return reading.decoder_config(read, layers, neighbours=False, factors="rope_freqs.weight")


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Files name the norm before the feed-forward without ``.weight``, or with it."""
    tensors = {**decoder_tensors(config), **optional_other_biases(config), **rope_factors(config)}
    for number in range(config.n_layers):
        bare = f"blk.{number}.ffn_norm"
        whole = tensors[bare + ".weight"]
        tensors[bare + ".weight"] = replace(whole, instead_of=bare)
        tensors[bare] = replace(whole, instead_of=bare + ".weight")
    return tensors


ARCHITECTURE = Architecture(_read, _tensors)
