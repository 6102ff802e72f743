"""Architecture phi3 (Phi 3, 3.5 and 4): fused projections, RoPE on a part of each head, and
longrope."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, fused_tensors, rope_factors


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the halves of its elements.

    A window in the file is ignored, as in llama.cpp.
    """

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        assert attention.rope is not None
        rope = reading.longrope(read, attention.rope)  # some files do not name the type of scaling
        return Layer(replace(attention, rope=rope), replace(feed_forward, is_fused=True))

    return reading.decoder_config(read, layer, neighbours=False)


ARCHITECTURE = Architecture(_read, all_of(fused_tensors, rope_factors))
