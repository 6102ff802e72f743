"""The phi3 architecture (Phi 3, 3.5 and 4): fused projections, heads turned in part, and
longrope."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, fused_tensors, rope_factors


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the halves of what it turns.

    A window in the file counts for nothing: llama.cpp has none here, too.
    """

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        assert attention.rope is not None
        rope = reading.longrope(
            read, attention.rope
        )  # files do not always name the kind of scaling
        return Layer(replace(attention, rope=rope), replace(feed_forward, is_fused=True))

    return reading.decoder_config(read, layer, neighbours=False)


ARCHITECTURE = Architecture(_read, all_of(fused_tensors, rope_factors))
