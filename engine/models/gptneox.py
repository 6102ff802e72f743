"""Architecture gptneox (GPT-NeoX, Pythia, Dolly): parallel branches, each from its own
LayerNorm."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import (
    Architecture,
    all_of,
    fused_tensors,
    norm_biases,
    other_biases,
    qkv_biases,
)


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs halves of a part of each head.

    The branches of some models are sequential.
    """
    if read.raw("use_parallel_residual") is None:
        raise read.fail(f"{read.key('use_parallel_residual')} is missing")
    is_parallel = read.flag("use_parallel_residual", default=True)
    layers = reading.layer_maker(
        form=reading.UNGATED, side_by_side=is_parallel, own_norms=is_parallel
    )
    return reading.decoder_config(read, layers, neighbours=False, layer_norm=True)


ARCHITECTURE = Architecture(_read, all_of(fused_tensors, norm_biases, qkv_biases, other_biases))
