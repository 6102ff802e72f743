"""Architecture modern-bert (ModernBERT, arXiv:2412.13663): norms before branches, windows on both
sides, GeGLU."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig, Rope
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading, steps
from engine.models.base import Architecture, fused_tensors
from engine.models.decoder import Decoder
from engine.weights.weights import TensorSpec

PERIOD = 3
"""Period of layers with full attention, including the first layer, if the file does not give it."""
NO_NORM = "blk.0.attn_norm.weight"
"""Norm that files lack: the first layer reads the normed embedding directly."""


def _read(read: Hyperparameters) -> ModelConfig:
    half = reading.window(read) // 2
    period = read.integer("attention.sliding_window_pattern", 1, reading.MAX_LAYERS, default=PERIOD)
    theta = read.positive("rope.freq_base_swa", 10000.0)

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        mixer = replace(attention, sees_after=reading.MAX_CONTEXT_LENGTH)
        if number % period:
            assert attention.rope is not None
            rope = Rope(theta, attention.rope.dim, attention.rope.neighbours)
            mixer = replace(attention, window=half + 1, sees_after=half, rope=rope)
        return Layer(mixer, replace(feed_forward, gate="gelu", is_fused=True))

    return reading.decoder_config(
        read, layer, neighbours=False, layer_norm=True, is_encoder=True, embedding_norm=True
    )


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    tensors = fused_tensors(config) | {"token_embd_norm.weight": TensorSpec((config.dim,))}
    return {name: spec for name, spec in tensors.items() if name not in (NO_NORM, "output.weight")}


def _layers(d: Decoder) -> None:
    steps.embedding(d)
    for number, layer in d.layers:
        assert isinstance(layer.mixer, Attention)
        assert layer.feed_forward is not None
        if number:
            x = steps.norm(d, number, "attn_norm")
        else:
            x = d.x
        mixed = steps.self_attention(d, number, layer.mixer, x)
        assert mixed is not None
        steps.residual(d, mixed)
        x = steps.norm(d, number, "ffn_norm")
        steps.residual(d, steps.feed_forward(d, number, layer.feed_forward, x))


ARCHITECTURE = Architecture(_read, _tensors, _layers)
