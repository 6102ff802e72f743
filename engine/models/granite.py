"""Architecture granite (Granite 3 and 4, dense): llama's layers with four multipliers."""

from collections.abc import Callable
from dataclasses import replace

from engine.config import Attention, Dense, FeedForward, Layer, ModelConfig, Recurrent
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    optional_other_biases,
    rope_factors,
)


def granite_config(
    read: Hyperparameters,
    feed_forward: Callable[[Dense], FeedForward] | None = None,
    recurrent: Recurrent | None = None,
) -> ModelConfig:
    """Read the configuration; RoPE rotates neighbouring elements, unless the file says that the
    model was trained without it.

    Args:
        feed_forward: Function that returns the replacement of a dense feed-forward; None to
            keep it.
        recurrent: Mixer of layers without key heads; None if all layers have attention.
    """
    turns = read.flag("rope.scaling.finetuned", default=True)
    scale = read.number("attention.scale", 0.0)  # 0 means the default

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        if feed_forward:
            form = feed_forward(dense)
        else:
            form = dense
        if recurrent is not None and not attention.n_kv_heads:
            return Layer(recurrent, form)
        mixer = replace(
            attention, rope=attention.rope if turns else None, scale=scale or attention.scale
        )
        return Layer(mixer, form)

    return reading.decoder_config(
        read,
        layer,
        neighbours=True,
        factors="rope_freqs.weight",
        has_experts=feed_forward is not None,
        is_hybrid=recurrent is not None,
        embedding_scale=reading.multiplier(read, "embedding_scale"),
        residual_scale=reading.multiplier(read, "residual_scale"),
        logit_scale=1.0 / read.positive("logit_scale"),
    )


granite_tensors = all_of(decoder_tensors, optional_other_biases, rope_factors)
ARCHITECTURE = Architecture(granite_config, granite_tensors)
