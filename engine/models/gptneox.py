"""The gptneox architecture (GPT-NeoX, Pythia, Dolly): branches side by side, each through a LayerNorm of its own."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors, fused_first, norm_biases, other_biases, qkv_biases
from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs the halves of what it turns, a part of each head. Some models' branches follow each other."""
    if read.raw("use_parallel_residual") is None:
        raise read.fail(f"{read.key('use_parallel_residual')} is missing")
    is_parallel = read.flag("use_parallel_residual", default=True)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        form = replace(feed_forward, gate="gelu", has_no_gate=True)
        return Layer(attention, form, side_by_side=is_parallel, own_norms=is_parallel)

    return reading.decoder_config(read, layer, neighbours=False, layer_norm=True)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {
        **fused_first(decoder_tensors(config)),
        **norm_biases(config),
        **qkv_biases(config, required=True),
        **other_biases(config, required=True),
    }


ARCHITECTURE = Architecture(_read, _tensors)
