"""Architecture bert (BERT, and XLM-RoBERTa in its form): learned positions, norms after branches,
biases."""

from engine.config import Attention, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading, steps
from engine.models.base import Architecture, fused_tensors, other_biases, qkv_biases
from engine.models.decoder import Decoder
from engine.weights.weights import TensorSpec

MAX_TYPES = 1 << 10


def post_norm_config(
    read: Hyperparameters, layer: reading.LayerMaker, learned_positions: int = 0
) -> ModelConfig:
    """Read the configuration of encoders with norms after branches; queries see all tokens."""
    n_types = read.under("tokenizer.ggml").integer("token_type_count", 0, MAX_TYPES, default=0)
    return reading.decoder_config(
        read,
        layer,
        neighbours=False,
        layer_norm=True,
        is_encoder=True,
        embedding_norm=True,
        token_types=n_types,
        learned_positions=learned_positions,
    )


def _read(read: Hyperparameters) -> ModelConfig:
    mixer = {"rope": None, "sees_after": reading.MAX_CONTEXT_LENGTH}
    layers = reading.layer_maker(mixer, reading.UNGATED, norm_before=False)
    return post_norm_config(
        read, layers, read.integer("context_length", 1, reading.MAX_CONTEXT_LENGTH)
    )


def post_norm_tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    """Return all tensors except the biases of products."""
    norms = [
        f"blk.{n}.{name}"
        for n in range(config.n_layers)
        for name in ("attn_output_norm", "layer_output_norm")
    ]
    tensors = {
        f"{name}.{suffix}": TensorSpec((config.dim,))
        for name in ("token_embd_norm", *norms)
        for suffix in ("weight", "bias")
    }
    omitted = {"output_norm.weight", "output.weight"}
    return {
        name: spec for name, spec in fused_tensors(config).items() if name not in omitted
    } | tensors


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return post_norm_tensors(config) | qkv_biases(config) | other_biases(config)


def post_norm_layers(d: Decoder) -> None:
    """x = norm(x + attention(x)), then x = norm(x + feed-forward(x)).

    The stream alternates between two buffers: a norm may not write what other threads still read.
    """
    steps.embedding(d)
    for number, layer in d.layers:
        assert isinstance(layer.mixer, Attention)
        assert layer.feed_forward is not None
        mixed = steps.self_attention(d, number, layer.mixer, d.x)
        assert mixed is not None
        steps.residual(d, mixed)
        x = steps.norm(d, number, "attn_output_norm")
        d.plan.add(x, steps.feed_forward(d, number, layer.feed_forward, x))
        d.plan.barrier()
        d.plan.phase = "norms"
        is_last = number == d.config.n_layers - 1
        if is_last:
            out = d.buffers.vector("vectors", d.config.dim)
        else:
            out = d.x
        steps.normed_by(d, x, f"blk.{number}.layer_output_norm", out)
        d.plan.barrier()


def no_head(d: Decoder) -> None:
    """Write nothing: the output of the layers is the vectors of the tokens."""


ARCHITECTURE = Architecture(_read, _tensors, post_norm_layers, no_head)
