"""Ranges of all numbers in the JSON files of a model, which are checked first.

A number has several names in the settings of transformers; the tables have the first of them.
"""

from __future__ import annotations

from typing import NamedTuple

from engine.gguf.header import MAX_STRINGS
from engine.models.reading import (
    MAX_CONTEXT_LENGTH,
    MAX_DIM,
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_USED,
)
from engine.models.recurrent import MAX_TAPS


class Range(NamedTuple):
    """Bounds of a number, both included."""

    least: float
    most: float


_POSITIONS = Range(1, MAX_CONTEXT_LENGTH)
_WIDTH = Range(0, MAX_DIM)
_BASE = Range(1, 1e18)
_FACTOR = Range(1e-6, 1e9)
_SCALE = Range(-1e9, 1e9)

WHOLE: dict[str, Range] = {
    "num_hidden_layers": Range(1, MAX_LAYERS),
    "max_position_embeddings": _POSITIONS,
    "original_max_position_embeddings": _POSITIONS,
    "hidden_size": Range(1, MAX_DIM),
    "num_attention_heads": Range(1, MAX_HEADS),
    "num_key_value_heads": Range(1, MAX_HEADS),
    "head_dim": Range(1, MAX_HEAD_DIM),
    "intermediate_size": _WIDTH,
    "num_local_experts": Range(0, MAX_EXPERTS),
    "num_experts_per_tok": Range(0, MAX_USED),
    "moe_intermediate_size": _WIDTH,
    "shared_expert_intermediate_size": _WIDTH,
    "sliding_window": Range(0, MAX_CONTEXT_LENGTH),
    "sliding_window_pattern": Range(1, MAX_LAYERS),
    "linear_num_value_heads": Range(1, MAX_HEADS),
    "linear_num_key_heads": Range(1, MAX_HEADS),
    "linear_value_head_dim": Range(1, MAX_HEAD_DIM),
    "linear_key_head_dim": Range(1, MAX_HEAD_DIM),
    "linear_conv_kernel_dim": Range(1, MAX_TAPS),
    "full_attention_interval": Range(1, MAX_LAYERS),
    "type_vocab_size": Range(0, MAX_STRINGS),
    "unk_id": Range(0, MAX_STRINGS),
}
"""Integers of ``config.json``, and of the model in ``tokenizer.json``."""

REAL: dict[str, Range] = {
    "rms_norm_eps": Range(0, 1),
    "layer_norm_eps": Range(0, 1),
    "rope_theta": _BASE,
    "rotary_emb_base": _BASE,
    "rope_local_base_freq": _BASE,
    "partial_rotary_factor": Range(0, 1),
    "rotary_pct": Range(0, 1),
    "factor": _FACTOR,
    "low_freq_factor": _FACTOR,
    "high_freq_factor": _FACTOR,
    "attention_factor": _FACTOR,
    "short_factor": _FACTOR,
    "long_factor": _FACTOR,
    "beta_fast": _FACTOR,
    "beta_slow": _FACTOR,
    "mrope_section": Range(0, MAX_HEAD_DIM),
    "query_pre_attn_scalar": _FACTOR,
    "attn_logit_softcapping": _FACTOR,
    "final_logit_softcapping": _FACTOR,
    "clip_qkv": _FACTOR,
    "attention_multiplier": _SCALE,
    "embedding_multiplier": _SCALE,
    "residual_multiplier": _SCALE,
    "logits_scaling": _SCALE,
    "logit_scale": _SCALE,
    "score": Range(-3.4e38, 3.4e38),
}
"""Floats of ``config.json``, and of the pieces in ``tokenizer.json``."""
