"""Architecture bitnet (BitNet b1.58): norms within both branches, and one scale for each ternary
matrix."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors


def _read(read: Hyperparameters) -> ModelConfig:
    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        hidden = feed_forward.hidden_dim
        if hidden % reading.DIM_MULTIPLE:
            key = read.key("feed_forward_length")
            raise read.fail(f"{key} is {hidden}: must be a multiple of {reading.DIM_MULTIPLE}")
        return Layer(replace(attention, norm_within=True), replace(feed_forward, norm_within=True))

    return reading.decoder_config(read, layer, neighbours=False)


ARCHITECTURE = Architecture(_read, decoder_tensors)
