"""Architectures qwen3, qwen3vl and openelm: llama's layers; queries and keys are normed by head
before RoPE. Rows of pictures add parts to the output of the first layers of qwen3vl (deepstack)."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors


def deepstack_parts(read: Hyperparameters) -> int:
    """Read the number of parts that rows of pictures add to the output of the first layers."""
    n_layers = read.integer("block_count", 1, reading.MAX_LAYERS)
    return read.integer("n_deepstack_layers", 0, n_layers, default=0)


def _read(read: Hyperparameters) -> ModelConfig:
    n_deepstack = deepstack_parts(read)

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        mixer = replace(reading.with_sections(read, attention), head_norms=True)
        return Layer(mixer, dense, adds_picture_part=number < n_deepstack)

    return reading.decoder_config(read, layer, neighbours=False)


ARCHITECTURE = Architecture(_read, decoder_tensors)
