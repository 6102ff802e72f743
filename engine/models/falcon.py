"""Architecture falcon (Falcon 7B, 40B, 180B): parallel branches from one LayerNorm, or from one
each."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading, steps
from engine.models.base import Architecture, fused_tensors, norm_biases
from engine.models.decoder import Decoder
from engine.weights.weights import TensorSpec

SECOND = "attn_norm_2"
"""Norm of the attention if the file has it; the feed-forward then has the other norm."""


def _read(read: Hyperparameters) -> ModelConfig:
    has_two = any(f"blk.0.{SECOND}.{suffix}" in read.tensors for suffix in ("weight", "bias"))
    layers = reading.layer_maker(form=reading.UNGATED, side_by_side=True, own_norms=has_two)
    return reading.decoder_config(read, layers, neighbours=False, layer_norm=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    tensors = {**fused_tensors(config), **norm_biases(config)}
    if not config.layers[0].own_norms:
        return tensors
    return {
        name.replace("attn_norm", SECOND).replace("ffn_norm", "attn_norm"): spec
        for name, spec in tensors.items()
    }


def _compose(d: Decoder) -> None:
    if d.config.layers[0].own_norms:
        steps.all_layers(d, ffn_norm="attn_norm", mixer_norm=SECOND)
    else:
        steps.all_layers(d)


ARCHITECTURE = Architecture(_read, _tensors, _compose)
