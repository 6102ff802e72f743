"""The gptneox architecture (GPT-NeoX, Pythia, Dolly): branches side by side, each through a LayerNorm of its own."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, fused_tensors, norm_biases, other_biases, qkv_biases


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the halves of what it turns, a part of each head. Some models' branches follow each other."""
    if read.raw("use_parallel_residual") is None:
        raise read.fail(f"{read.key('use_parallel_residual')} is missing")
    is_parallel = read.flag("use_parallel_residual", default=True)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        form = replace(feed_forward, gate="gelu", has_no_gate=True)
        return Layer(attention, form, side_by_side=is_parallel, own_norms=is_parallel)

    return reading.decoder_config(read, layer, neighbours=False, layer_norm=True)


ARCHITECTURE = Architecture(_read, all_of(fused_tensors, norm_biases, qkv_biases, other_biases))
