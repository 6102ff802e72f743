"""Architecture stablelm (StableLM 3B, Zephyr, 2 1.6B and 12B): LayerNorm, and RoPE on a part of
each head."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    decoder_tensors,
    norm_biases,
    optional_qkv_biases,
)


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs the halves of its elements.

    The 12B has LayerNorms of heads and parallel branches, as its tensors show; the key
    ``use_parallel_residual`` is unreliable.
    """
    has_norms = any(f"blk.0.attn_{letter}_norm.weight" in read.tensors for letter in "qk")
    side_by_side = not any(
        f"blk.0.ffn_norm.{suffix}" in read.tensors for suffix in ("weight", "bias")
    )
    layers = reading.layer_maker(mixer={"head_layer_norms": has_norms}, side_by_side=side_by_side)
    return reading.decoder_config(read, layers, neighbours=False, layer_norm=True)


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, norm_biases, optional_qkv_biases))
