"""Architecture mistral3 (Ministral 3): llama's layers; queries grow with their positions."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    optional_other_biases,
    rope_factors,
)


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE rotates neighbouring elements of entire heads, and scales
    queries by their positions."""
    growth = read.number("attention.temperature_scale", 0.0)
    original = reading.original_context(read)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        rope = attention.rope
        assert rope is not None
        if rope.dim != attention.key_dim:
            key = read.key("rope.dimension_count")
            raise read.fail(f"{key} is {rope.dim}, heads have {attention.key_dim}: must be equal")
        if growth:
            rope = replace(rope, query_growth=growth, original_context=original)
        return Layer(replace(attention, rope=rope), feed_forward)

    return reading.decoder_config(read, layer, neighbours=True, factors="rope_freqs.weight")


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, optional_other_biases, rope_factors))
