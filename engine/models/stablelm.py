"""The stablelm architecture (StableLM 3B, Zephyr, 2 1.6B and 12B): LayerNorm, and heads turned in
part."""

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
    """Rope pairs the halves of what it turns.

    The 12B's heads have LayerNorms, and its branches are side by side. Its tensors say so: what
    files have under ``use_parallel_residual`` is a converter's guess.
    """
    has_norms = any(f"blk.0.attn_{letter}_norm.weight" in read.tensors for letter in "qk")
    side_by_side = not any(f"blk.0.ffn_norm.{kind}" in read.tensors for kind in ("weight", "bias"))
    layers = reading.layer_maker(mixer={"head_layer_norms": has_norms}, side_by_side=side_by_side)
    return reading.decoder_config(read, layers, neighbours=False, layer_norm=True)


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, norm_biases, optional_qkv_biases))
