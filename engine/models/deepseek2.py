"""The deepseek2 architecture (DeepSeek V2 Lite, GLM 4.7 Flash): latent attention, and experts next to shared ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.config import Attention, Dense, Latent, Layer, Rope, Router, sharpness
from engine.models import reading
from engine.models.base import Architecture, choice_biases, decoder_tensors

if TYPE_CHECKING:
    from engine.config import ModelConfig
    from engine.gguf.hyperparameters import Hyperparameters
    from engine.weights.weights import TensorSpec

GLM_VOCABULARY = 154880
LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope pairs neighbours; the first layers have no experts."""
    first, n_blocks = reading.leading_dense(read), read.integer("block_count", 1, reading.MAX_LAYERS)

    def layer(number: int, attention: Attention, dense: Dense) -> Layer:
        if number < first:
            return Layer(attention, dense)
        width = reading.expert_width(read)
        shared = Dense(width * read.integer("expert_shared_count", 1, reading.MAX_USED))
        return Layer(attention, replace(reading.experts(read, width, _router(read, n_blocks)), shared=shared))

    mixers = [_attention(read)] * n_blocks
    return reading.decoder_config(read, layer, neighbours=True, has_experts=True, has_predictors=True, mixers=mixers)


def _router(read: Hyperparameters, n_blocks: int) -> Router:
    """By the usual keys; early files of GLM 4.7 Flash do not say that it scores by sigmoid."""
    router = reading.keyed_router(read)
    if read.raw("expert_gating_func") is None and n_blocks in (47, 48) and reading.vocab_size(read) == GLM_VOCABULARY:
        return replace(router, score="sigmoid")
    return router


def _attention(read: Hyperparameters) -> Attention:
    """One head of keys, whose first elements are turned: queries' scale makes up for what YaRN does to sharpness."""
    if read.raw("attention.key_length_mla") is None:
        raise read.fail(f"{read.key('attention.key_length_mla')} is missing: an old file (get one made since May 2025)")
    if read.raw("attention.temperature_scale") is not None:
        raise read.fail(f"{read.key('attention.temperature_scale')} is not supported with latent attention")
    rank, key_dim, value_dim = (
        _width(read, f"attention.{name}") for name in ("kv_lora_rank", "key_length_mla", "value_length_mla")
    )
    n_kv_heads = read.integer("attention.head_count_kv", 1, 1, default=1)  # the latent vector, which all heads share
    turned = _width(read, "rope.dimension_count")
    if turned >= key_dim:
        raise read.fail(f"{read.key('rope.dimension_count')} is {turned}: must be less than the {key_dim} of a head")
    if rank + turned > reading.MAX_HEAD_DIM:
        key = read.key("attention.kv_lora_rank")
        raise read.fail(f"{key} is {rank}: with {turned} turned elements at most {reading.MAX_HEAD_DIM} are supported")
    is_ranked = any(f"blk.0.attn_q_{part}.weight" in read.tensors for part in ("a", "b"))
    query_rank = _width(read, "attention.q_lora_rank") if is_ranked else 0
    rope, factor = _rope(read, turned)
    n_heads, latent = (
        read.integer("attention.head_count", 1, reading.MAX_HEADS),
        Latent(rank, key_dim, value_dim, query_rank),
    )
    width = turned + rank
    return Attention(n_heads, n_kv_heads, width, width, rope, factor**2 * key_dim**-0.5, latent=latent)


def _width(read: Hyperparameters, name: str) -> int:
    width = read.integer(name, reading.DIM_MULTIPLE, reading.MAX_DIM)
    if width % reading.DIM_MULTIPLE:
        raise read.fail(f"{read.key(name)} is {width}: must be a multiple of {reading.DIM_MULTIPLE}")
    return width


def _rope(read: Hyperparameters, turned: int) -> tuple[Rope, float]:
    """The rope, and what queries and keys are multiplied by in place of what their turned parts would be."""
    rope, factor = reading.rope(read, turned, neighbours=True), read.positive("rope.scaling.attn_factor", 1.0)
    if rope.yarn is None:
        return rope, factor
    log_multiplier, stretch = read.number(LOG_MULTIPLIER, 0.0), math.log(max(1.0, rope.scaling_factor))
    magnitude = factor if log_multiplier else factor * sharpness(rope.scaling_factor)
    return replace(rope, magnitude=magnitude), magnitude * (1 + log_multiplier * stretch)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**decoder_tensors(config), **choice_biases(config)}


ARCHITECTURE = Architecture(_read, _tensors)
