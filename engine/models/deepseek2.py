"""Architecture deepseek2 (DeepSeek V2 Lite, GLM 4.7 Flash): latent attention, and experts next to
shared experts."""

import math
from collections.abc import Callable
from dataclasses import replace

from engine.config import Attention, Latent, ModelConfig, Rope, Router, sharpness
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, all_of, choice_biases, decoder_tensors

GLM_VOCABULARY = 154880
LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"
QUERY_RANK = "attention.q_lora_rank"


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE pairs neighbours, and the first layers have no experts."""
    n_blocks = read.integer("block_count", 1, reading.MAX_LAYERS)
    layers = reading.next_to_shared(read, _router(read, n_blocks))
    mixers = [_attention(read)] * n_blocks
    return reading.decoder_config(
        read,
        layers,
        neighbours=True,
        has_experts=True,
        has_predictors=True,
        predictor=layers,
        mixers=mixers,
    )


def _router(read: Hyperparameters, n_blocks: int) -> Router:
    """Read the router; early files of GLM 4.7 Flash omit that it scores by sigmoid."""
    router = reading.keyed_router(read)
    if (
        read.raw("expert_gating_func") is None
        and n_blocks in (47, 48)
        and reading.vocab_size(read) == GLM_VOCABULARY
    ):
        return replace(router, score="sigmoid")
    return router


def _attention(read: Hyperparameters) -> Attention:
    if read.raw("attention.key_length_mla") is None:
        raise read.fail(
            f"{read.key('attention.key_length_mla')} is missing: an old file (get one made "
            f"since May 2025)"
        )
    if read.raw("attention.temperature_scale") is not None:
        raise read.fail(
            f"{read.key('attention.temperature_scale')} is not supported with latent attention"
        )
    read.integer(
        "attention.head_count_kv", 1, 1, default=1
    )  # the latent vector, which all heads share
    is_ranked = any(f"blk.0.attn_q_{suffix}.weight" in read.tensors for suffix in ("a", "b"))
    key_dim, value_dim = (
        head_width(read, f"attention.{name}_length_mla") for name in ("key", "value")
    )
    if is_ranked:
        query_rank = head_width(read, QUERY_RANK)
    else:
        query_rank = 0
    return latent_attention(read, _rope, Latent(0, key_dim, value_dim, query_rank))


def latent_attention(
    read: Hyperparameters,
    rope_of: Callable[[Hyperparameters, int], tuple[Rope, float]],
    latent: Latent,
) -> Attention:
    """Return attention with one head of keys, whose first elements are rotated.

    The scale of queries compensates the change of sharpness by YaRN.

    Args:
        rope_of: Function that returns the RoPE of a number of elements, and the factor of
            queries and keys.
        latent: Latent sizes without the rank, which is read.
    """
    rank, turned = (
        head_width(read, name) for name in ("attention.kv_lora_rank", "rope.dimension_count")
    )
    if turned >= latent.key_dim:
        key = read.key("rope.dimension_count")
        raise read.fail(f"{key} is {turned}: must be less than the {latent.key_dim} of a head")
    if rank + turned > reading.MAX_HEAD_DIM:
        key = read.key("attention.kv_lora_rank")
        raise read.fail(
            f"{key} is {rank}: with {turned} turned elements at most {reading.MAX_HEAD_DIM} "
            f"are supported"
        )
    rope, factor = rope_of(read, turned)
    n_heads = read.integer("attention.head_count", 1, reading.MAX_HEADS)
    width = turned + rank
    scale = factor**2 * latent.key_dim**-0.5
    return Attention(n_heads, 1, width, width, rope, scale, latent=replace(latent, rank=rank))


def joint_attention(
    read: Hyperparameters, rope_of: Callable[[Hyperparameters, int], Rope], query_rank: int = 0
) -> Attention:
    """Return latent attention of files whose keys give the sizes of each head, and which have the
    matrices of keys and values in one tensor."""
    n_heads = read.integer("attention.head_count", 1, reading.MAX_HEADS)
    read.integer("attention.head_count_kv", n_heads, n_heads, default=n_heads)
    key_dim = head_width(read, "attention.key_length")
    value_dim = head_width(read, "attention.value_length", reading.width(read) // n_heads)
    latent = Latent(0, key_dim, value_dim, query_rank, is_joint=True)
    return latent_attention(read, lambda *arguments: (rope_of(*arguments), 1.0), latent)


def head_width(read: Hyperparameters, name: str, default: int | None = None) -> int:
    """Read a width that kernels support."""
    width = read.integer(name, reading.DIM_MULTIPLE, reading.MAX_DIM, default)
    if width % reading.DIM_MULTIPLE:
        raise read.fail(
            f"{read.key(name)} is {width}: must be a multiple of {reading.DIM_MULTIPLE}"
        )
    return width


def _rope(read: Hyperparameters, turned: int) -> tuple[Rope, float]:
    """Return the RoPE and the factor of queries and keys, which includes that of their rotated
    elements."""
    rope = reading.rope(read, turned, neighbours=True)
    factor = read.positive("rope.scaling.attn_factor", 1.0)
    if rope.yarn is None:
        return rope, factor
    log_multiplier = read.number(LOG_MULTIPLIER, 0.0)
    stretch = math.log(max(1.0, rope.scaling_factor))
    if log_multiplier:
        magnitude = factor
    else:
        magnitude = factor * sharpness(rope.scaling_factor)
    return replace(rope, magnitude=magnitude), magnitude * (1 + log_multiplier * stretch)


ARCHITECTURE = Architecture(_read, all_of(decoder_tensors, choice_biases))
