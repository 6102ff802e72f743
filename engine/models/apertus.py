"""Architecture apertus (Apertus): llama's layers with norms of heads, and a trained activation
instead of a gate."""

import math
from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Xielu
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    optional_qkv_biases,
    output_biases,
    rope_factors,
)


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the two halves of a head.

    The keys of the activation have its name as prefix, not that of the architecture.
    """
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


ARCHITECTURE = Architecture(
    _read, all_of(decoder_tensors, optional_qkv_biases, output_biases, rope_factors)
)
