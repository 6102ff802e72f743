"""Type of each tensor in llama.cpp's mixtures, by the roles of tensors, their layers and their
shapes.

Source: llama-quant.cpp, llama_tensor_get_type_impl, tensor_allows_quantization and
tensor_type_fallback.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

import numpy as np

from engine.gguf.ggml_types import MIXES, TYPES_BY_NAME

MIXTURES = {
    mix: number
    for number, (type_name, mix) in MIXES.items()
    if mix in (
        "F32", "F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M",
        "Q4_K_S", "Q4_1", "Q4_0",
        "IQ4_NL", "IQ4_XS", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K",
    )
}  # fmt: skip
"""Number in ``general.file_type`` of each mixture."""

_LIKE_FALCON = frozenset(["falcon"])
"""Architectures for which other layers get more bits."""
_SEVENTY_BILLION = {"llama": 80}
"""Number of layers of the 70B model, by architecture; its value matrix is an eighth of the query
matrix."""

Role = Literal["output", "table", "value", "key", "attention out", "down", "other"]
_ROLES: tuple[tuple[str, Role], ...] = (
    ("attn_qkv.weight", "value"), ("attn_kv_b.weight", "value"), ("attn_v.weight", "value"),
    ("attn_k.weight", "key"),
    ("attn_output.weight", "attention out"), ("ffn_down", "down"),
)  # fmt: skip
_TABLES = ("token_embd.weight", "per_layer_token_embd.weight")
_NEVER = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|ffn_gate_tid2eid\.weight|altup|laurel"
    r"|per_layer_model_proj|ssm_conv1d|shortconv\.conv\.weight|indexer\.[kq]_proj\.weight"
    r"|time_mix_(first|w[012]|v[012]|a[012]|g[12])\.weight|time_mix_(decay_w[12]"
    r"|lerp_fused)\.weight|attn_rel_b\.weight|\.position_embd|sam\.(pos_embd|neck\.|net_)"
    r"|\.rel_pos|\.patch_embd|\.patch_merger|a\.rvq\.codebook|mm\.a\.code_embd|^(position_embd"
    r"|token_types)\.weight$"
)
"""Pattern of tensors that keep their type: small but sensitive tensors, and tensors that are no
factors of products."""
_SMALLER_BLOCKS = {
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    "IQ4_XS": "IQ4_NL",
}


class TypedShape(NamedTuple):
    """Tensor of the source: its shape in NumPy's order, and its type."""

    shape: tuple[int, ...]
    type_name: str


@dataclass(frozen=True)
class Facts:
    """Facts about a model that mixtures depend on."""

    architecture: str
    n_layers: int
    n_experts: int
    n_heads: int
    n_heads_kv: int
    is_tied: bool
    has_importance: bool

    @property
    def shares_heads(self) -> bool:
        """Whether four or more query heads share one head of keys and values."""
        return self.n_heads_kv > 0 and self.n_heads // self.n_heads_kv >= 4

    @property
    def has_seventy_billion(self) -> bool:
        """Whether it is Llama's 70B model."""
        return (
            _SEVENTY_BILLION.get(self.architecture) == self.n_layers
            and self.n_heads != self.n_heads_kv
        )

    @property
    def is_like_falcon(self) -> bool:
        """Whether other layers get more bits."""
        return self.architecture in _LIKE_FALCON


def mixture(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TypedShape],
    mix: str,
    has_importance: bool = False,
    keep: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Choose each tensor's type.

    Args:
        metadata: Metadata of the model.
        tensors: Shape and type of each tensor, by name.
        mix: Key of ``MIXTURES``.
        has_importance: Whether an importance matrix is used.
        keep: Types by tensor names, which may contain ``*``; the first match counts.

    Returns:
        name -> type, in the order of layers.
    """
    plain = MIXES[MIXTURES[mix]][0]
    facts = _facts(metadata, tensors, has_importance)
    roles = {name: _role(name) for name in sorted(tensors, key=_place)}
    n_values = sum(role == "value" for role in roles.values())
    counts = dict.fromkeys(("value", "down"), 0)
    chosen = {}
    for name, role in roles.items():
        shape, new_type = tensors[name]
        if may_shrink(name, shape):
            chosen_type = next(
                (
                    type_name
                    for pattern, type_name in (keep or {}).items()
                    if fnmatchcase(name, pattern)
                ),
                "",
            )
            if not chosen_type:
                chosen_type = _of_role(role, name, shape[-1], mix, plain, facts, counts, n_values)
            new_type = _fitting(chosen_type, shape[-1])
        chosen[name] = new_type
    return chosen


def may_shrink(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor may get another type: matrices of weights, including experts."""
    n_dims = len(shape) - next((k for k, n in enumerate(shape) if n > 1), len(shape) - 1)
    return n_dims > 1 and name.endswith("weight") and not _NEVER.search(name)


def _facts(
    metadata: Mapping[str, Any], tensors: Mapping[str, TypedShape], has_importance: bool
) -> Facts:
    architecture = metadata.get("general.architecture")

    def number(key: str) -> int:
        value = metadata.get(f"{architecture}.{key}", 0)
        if isinstance(value, np.ndarray) and value.size:
            first = value[0]
        else:
            first = value
        if isinstance(first, (int, np.integer)):
            return int(first)
        return 0

    n_heads = number("attention.head_count")
    if f"{architecture}.attention.head_count_kv" in metadata:
        n_heads_kv = number("attention.head_count_kv")
    else:
        n_heads_kv = n_heads
    is_tied = "output.weight" not in tensors
    return Facts(
        str(architecture),
        number("block_count"),
        number("expert_count"),
        n_heads,
        n_heads_kv,
        is_tied,
        has_importance,
    )


def _place(name: str) -> tuple[int, str]:
    """Return the sort key of a tensor: by layer, tensors outside layers first."""
    layer = _layer(name)
    return -1 if layer is None else layer, name


def _layer(name: str) -> int | None:
    match = re.match(r"blk\.(\d{1,9})\.", name)
    if match:
        return int(match[1])
    return None


def _role(name: str) -> Role:
    if name == "output.weight":
        return "output"
    if name in _TABLES:
        return "table"
    return next((role for pattern, role in _ROLES if pattern in name), "other")


def _fitting(type_name: str, n_cols: int) -> str:
    """Return a type whose blocks fill complete rows."""
    if n_cols % TYPES_BY_NAME[type_name].block_size:
        type_name = _SMALLER_BLOCKS.get(type_name, type_name)
    if n_cols % TYPES_BY_NAME[type_name].block_size:
        return "F16"
    return type_name


def _gets_more(layer: int, n_layers: int) -> bool:
    """Return whether a layer is worth more bits: the first ones, the last ones, and every third in
    between."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def _of_role(
    role: Role,
    name: str,
    n_cols: int,
    mix: str,
    plain: str,
    facts: Facts,
    counts: dict[str, int],
    n_values: int,
) -> str:
    """Return the type of a tensor, regardless of its shape.

    ``counts`` has the number of earlier tensors of each role.
    """
    if plain in ("F32", "F16", "BF16"):
        return plain
    if role == "output" or (role == "table" and facts.is_tied):
        is_eight = (
            facts.is_like_falcon or n_cols % TYPES_BY_NAME[plain].block_size or plain == "Q8_0"
        )
        if is_eight:
            return "Q8_0"
        return "Q6_K"
    if role == "value":
        counts[role] += 1
        return _value_type(counts[role] - 1, n_values, mix, plain, facts)
    if role == "key" and facts.n_experts == 8:
        return "Q8_0"
    if role == "down":
        counts[role] += 1
        if facts.n_experts > 1:
            layer = _layer(name)
        else:
            layer = None
        return _down_type(counts[role] - 1 if layer is None else layer, mix, plain, facts)
    if role == "attention out":
        return _attention_out_type(mix, plain, facts)
    return plain


def _value_type(index: int, n_values: int, mix: str, plain: str, facts: Facts) -> str:
    if facts.n_experts == 8:
        return "Q8_0"
    chosen = plain
    if mix == "Q2_K":
        if facts.shares_heads:
            chosen = "Q4_K"
        else:
            chosen = "Q3_K"
    elif mix == "Q3_K_M":
        if index < 2:
            chosen = "Q5_K"
        else:
            chosen = "Q4_K"
    elif (
        mix == "Q3_K_L"
        or (mix in ("IQ4_NL", "IQ4_XS") and facts.shares_heads)
        or (mix == "Q4_K_S" and index < 4)
    ):
        chosen = "Q5_K"
    elif mix in ("Q4_K_M", "Q5_K_M") and _gets_more(index, n_values):
        chosen = "Q6_K"
    if facts.has_seventy_billion and chosen in ("Q3_K", "Q4_K"):
        return "Q5_K"
    return chosen


def _down_type(layer: int, mix: str, plain: str, facts: Facts) -> str:
    n = facts.n_layers
    is_falcon = facts.is_like_falcon
    is_first = layer < n // 8
    gets_more = _gets_more(layer, n)
    if mix == "Q2_K":
        return "Q3_K"
    if mix == "Q3_K_M":
        if layer < n // 16:
            return "Q5_K"
        if gets_more or not is_falcon:
            return "Q4_K"
        return "Q3_K"
    if mix == "Q3_K_L":
        if is_falcon:
            return "Q4_K"
        return "Q5_K"
    if mix == "Q4_K_M" and is_falcon:
        if layer < n // 16:
            return "Q6_K"
        if gets_more:
            return "Q5_K"
        return "Q4_K"
    if mix in ("Q4_K_M", "Q5_K_M") and gets_more:
        return "Q6_K"
    if is_first and mix in ("IQ4_NL", "IQ4_XS") and not facts.has_importance:
        return "Q5_K"
    if is_first and mix == "Q4_K_S" and not is_falcon:
        return "Q5_K"
    if is_first and mix in ("Q4_0", "Q5_0") and facts.has_importance:
        if mix == "Q4_0":
            return "Q4_1"
        return "Q5_1"
    return plain


def _attention_out_type(mix: str, plain: str, facts: Facts) -> str:
    if facts.is_like_falcon:
        if mix == "Q3_K_L":
            return "Q4_K"
        return plain
    if facts.n_experts == 8:
        if mix in ("Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS"):
            return "Q5_K"
        return plain
    return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(mix, plain)
