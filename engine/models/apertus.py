"""The apertus architecture (Apertus): llama's layers with norms of heads, and a trained function in place of a gate."""

import math
from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Xielu
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, output_biases, qkv_biases, rope_factors
from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the two halves of a head. The function's keys have its name in place of the architecture's."""
    n_layers = read.integer("block_count", 1, reading.MAX_LAYERS)
    names = "alpha_p", "alpha_n", "beta", "eps"
    above, below, slope, bound = (read.under("xielu").numbers(name, n_layers) for name in names)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        function = Xielu(
            above=_softplus(above[number]),
            below=slope[number] + _softplus(below[number]),
            slope=slope[number],
            bound=bound[number],
        )
        dense = replace(feed_forward, gate="xielu", has_no_gate=True, xielu=function)
        return Layer(replace(attention, head_norms=True), dense)

    return reading.decoder_config(read, layer, neighbours=False, factors="rope_freqs.weight")


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    biases = {**qkv_biases(config, required=False), **output_biases(config)}
    return {**decoder_tensors(config), **biases, **rope_factors(config)}


ARCHITECTURE = Architecture(_read, _tensors)
