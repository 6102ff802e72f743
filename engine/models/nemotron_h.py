"""Architectures nemotron_h and nemotron_h_moe (Nemotron H, Nano 2, 3): a layer is a mixer or a
feed-forward."""

from dataclasses import replace

from engine.config import Attention, Dense, Experts, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading, recurrent, steps
from engine.models.base import Architecture, choice_biases, decoder_tensors, optional_other_biases
from engine.models.decoder import Decoder
from engine.weights.weights import TensorSpec

NORM = "attn_norm"
"""Only norm of a layer of any type."""
SECOND_NORM = "post_attention_norm"
"""Norm before the feed-forward of the predictor, which has attention, too."""


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration.

    A layer with a feed-forward width is a feed-forward, a layer with key heads is attention without
    RoPE, the others are recurrent.
    """
    mamba2 = recurrent.mamba2_of(read)
    has_experts = any("_exps." in name for name in read.tensors)

    def predicting(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        dense = replace(feed_forward, **reading.SQUARED)
        return Layer(replace(attention, rope=None), _experts(read, dense))

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        if feed_forward.hidden_dim:
            dense = replace(feed_forward, **reading.SQUARED)
            return Layer(None, _experts(read, dense) if has_experts else dense)
        return Layer(replace(attention, rope=None) if attention.n_kv_heads else mamba2, None)

    return reading.decoder_config(
        read,
        layer,
        neighbours=False,
        eps_name=reading.LAYER_EPS if read.raw(reading.RMS_EPS) is None else reading.RMS_EPS,
        is_hybrid=True,
        has_bare_mixers=True,
        has_predictors=True,
        predictor=predicting if has_experts else None,
        has_experts=has_experts,
    )


def _experts(read: Hyperparameters, dense: Dense) -> Experts:
    """Return experts without gates, scored by sigmoid, next to a shared expert."""
    if read.integer("moe_latent_size", 0, reading.MAX_DIM, default=0):
        raise read.fail(
            f"{read.key('moe_latent_size')}: experts in a narrower space are not supported "
            f"(Nano 3 has none)"
        )
    router = replace(reading.keyed_router(read), score="sigmoid")
    routed = reading.experts(read, reading.expert_width(read, dense), router, dense.gate)
    shared = replace(
        dense, hidden_dim=read.integer("expert_shared_feed_forward_length", 1, reading.MAX_DIM)
    )
    return replace(routed, has_no_gate=True, shared=shared)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    tensors = {**decoder_tensors(config), **optional_other_biases(config), **choice_biases(config)}
    mixing = {f"blk.{number}." for number, layer in enumerate(config.layers) if layer.mixers}
    renamed = {}
    for name, spec in tensors.items():
        is_mixing = name.removesuffix("ffn_norm.weight") in mixing
        renamed[name.replace("ffn_norm", SECOND_NORM if is_mixing else NORM)] = spec
    return renamed


def _compose(d: Decoder) -> None:
    """Write the layers, or the predictor."""
    steps.all_layers(d, ffn_norm=NORM if d.hidden is None else SECOND_NORM)


ARCHITECTURE = Architecture(_read, _tensors, _compose, predictor_layer_norm=True)
