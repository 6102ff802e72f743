"""Keys of a GGUF file from a model's ``config.json``: those that architectures share, and
positions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.config import sharpness
from engine.convert.bounded import JsonObject
from engine.errors import printable

_INTEGERS = {
    "block_count": "num_hidden_layers|n_layer|num_layers",
    "context_length": "max_position_embeddings|n_positions|n_ctx|seq_length|max_seq_len",
    "embedding_length": "hidden_size|n_embd|d_model",
    "attention.head_count": "num_attention_heads|n_head|n_heads",
}
_OPTIONAL = {
    "feed_forward_length": "intermediate_size|n_inner|ffn_dim",
    "expert_count": "num_local_experts|num_experts|n_routed_experts",
    "expert_used_count": "num_experts_per_tok|num_experts_per_token|moe_topk",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size|shared_intermediate_size",
}
_EPSILONS = {
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps|layer_norm_epsilon|norm_epsilon|norm_eps",
}
_FACTORS = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
LLAMA3_CONTEXT = 8192


@dataclass
class ConvertedConfig:
    """Keys and tensors that a configuration is converted to.

    Attributes:
        keys: Keys without the prefix of the architecture.
        vocabulary: Keys that belong to the vocabulary in GGUF.
        tensors: Numbers that a GGUF file has as tensors.
    """

    keys: dict[str, Any] = field(default_factory=dict)
    vocabulary: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)

    @property
    def n_heads(self) -> int:
        """Number of query heads."""
        return int(self.keys["attention.head_count"])

    @property
    def n_kv_heads(self) -> int:
        """Number of key heads."""
        return int(self.keys["attention.head_count_kv"])

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return int(
            self.keys.get("attention.key_length", self.keys["embedding_length"] // self.n_heads)
        )


def describe(config: JsonObject, has_rope: bool) -> ConvertedConfig:
    """Return the keys that all architectures share.

    Raises:
        ConversionError: A key is missing or invalid; the ranges of the model's values are
            checked with the entire file.
    """
    keys: dict[str, Any] = {key: config.integer(names) for key, names in _INTEGERS.items()}
    if keys["embedding_length"] < keys["attention.head_count"]:
        raise config.fail(f"hidden_size is {keys['embedding_length']}: fewer than the heads")
    keys |= {
        key: config.integer(names)
        for key, names in _OPTIONAL.items()
        if config.get(names) is not None
    }
    keys["attention.head_count_kv"] = config.integer(
        "num_key_value_heads", keys["attention.head_count"]
    )
    if config.get("head_dim") is not None:
        keys |= dict.fromkeys(
            ("attention.key_length", "attention.value_length"), config.integer("head_dim")
        )
    keys |= {
        key: config.number(names)
        for key, names in _EPSILONS.items()
        if config.get(names) is not None
    }
    converted = ConvertedConfig(keys)
    if has_rope:
        _describe_rope(config, converted)
    return converted


def rope_of(config: JsonObject, layer_type: str = "full_attention") -> JsonObject:
    """Return the settings of RoPE: ``rope_parameters``, or the older keys.

    Args:
        layer_type: Type of the layers, if each type has its own settings.
    """
    parameters = config.under("rope_parameters")
    if layer_type in parameters.values:
        parameters = parameters.under(layer_type)
    older = {
        name: config.values[name]
        for name in ("rope_theta", "partial_rotary_factor")
        if name in config.values
    }
    return JsonObject(
        {**older, **config.under("rope_scaling").values, **parameters.values}, config.name
    )


def _describe_rope(config: JsonObject, converted: ConvertedConfig) -> None:
    """Add the base, the number of rotated elements, and the scaling of positions."""
    rope = rope_of(config)
    keys = converted.keys
    head_dim = converted.head_dim
    theta = rope.number("rope_theta", config.number("rotary_emb_base|rope_base", 10000.0))
    share = rope.number("partial_rotary_factor", config.number("rotary_pct|rope_pct", 1.0))
    keys |= {"rope.freq_base": theta, "rope.dimension_count": int(share * head_dim)}
    scaling = rope.word("rope_type|type", "default")
    original = rope.integer(
        "original_max_position_embeddings",
        config.integer(
            "original_max_position_embeddings",
            LLAMA3_CONTEXT if scaling == "llama3" else keys["context_length"],
        ),
    )
    if scaling == "linear":
        keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope.number("factor")}
    elif scaling == "yarn":
        _describe_yarn(rope, keys, original)
    elif scaling == "llama3":
        converted.tensors[_FACTORS[0]] = llama3_factors(
            rope, theta, keys["rope.dimension_count"], original
        )
    elif scaling in ("longrope", "su"):
        n_pairs = keys["rope.dimension_count"] // 2
        stretch = keys["context_length"] / max(1, original)
        for name, length in zip(_FACTORS[1:], ("short", "long"), strict=True):
            converted.tensors[name] = np.array(
                rope.numbers(f"{length}_factor", n_pairs), np.float32
            )
        if stretch > 1 < original:
            default_factor = math.sqrt(1 + math.log(stretch) / math.log(original))
        else:
            default_factor = 1.0
        keys |= {
            "rope.scaling.type": "longrope",
            "rope.scaling.original_context_length": original,
            "rope.scaling.attn_factor": rope.number("attention_factor", default_factor),
        }
    elif scaling not in ("default", "dynamic"):  # dynamic does not change the trained context
        supported = "default, linear, dynamic, llama3, yarn, longrope"
        raise config.fail(f"rope_type is '{printable(scaling, 40)}'; supported: {supported}")


def _describe_yarn(rope: JsonObject, keys: dict[str, Any], original: int) -> None:
    factor = rope.number("factor")
    keys |= {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
    }
    if rope.get("attention_factor") is not None:
        keys["rope.scaling.attn_factor"] = rope.number("attention_factor") / sharpness(factor)
    for name in ("beta_fast", "beta_slow"):
        if rope.get(name) is not None:
            keys[f"rope.scaling.yarn_{name}"] = rope.number(name)


def llama3_factors(
    rope: JsonObject, theta: float, n_rotated: int, original: int
) -> np.ndarray[Any, Any]:
    """Return the divisors of frequencies of Llama 3.1: the factor for slow ones, 1 for fast ones,
    and a ramp between them.

    Source: https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py
    """
    factor, low, high = (
        rope.number(name, default)
        for name, default in (("factor", 8.0), ("low_freq_factor", 1.0), ("high_freq_factor", 4.0))
    )
    if low >= high:
        raise rope.fail(
            f"low_freq_factor is {low:g}: must be below high_freq_factor, {high:g} (get the "
            f"file again)"
        )
    frequencies = theta ** -(np.arange(0, n_rotated, 2) / n_rotated)
    rotations = original * frequencies / (2 * np.pi)
    with np.errstate(over="ignore"):  # if both factors are nearly 1
        smooth = np.clip((rotations - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
