"""Tensors of Qwen 3.5: gated delta nets, and the block for the token after the next (MTP).

Transformers keeps the value heads of a delta net next to each other that share a key head; in GGUF
the heads that use the first value of each key head come first, and so on. Sources: the models of
transformers, and llama.cpp's converter (ggml-org/llama.cpp, conversion/qwen.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from engine.convert.bounded import JsonObject
from engine.convert.hyperparameters import ConvertedConfig, rope_of
from engine.errors import ConversionError

Order = np.ndarray[Any, np.dtype[np.intp]]
LINEAR_ATTENTION = ".linear_attn."
_SECTIONS = [11, 11, 10]
"""Pairs of each head that turn by time, row and column, in all released models."""
_LAYER_TYPES = "linear_attention", "full_attention"
_PREDICTOR_LAYER = re.compile(r"(?:model\.)?mtp\.layers\.(\d{1,3})\.(.+)")
_PREDICTOR_NAMES = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head_norm",
    "embed_tokens": "embed_tokens",
}
"""Names of the predictor's own tensors in GGUF, after ``nextn.``."""


def describe_delta_net(config: JsonObject, converted: ConvertedConfig) -> None:
    """Add the keys of delta nets, of the layers that have them, and of positions in pictures."""
    keys = converted.keys
    n_values = config.integer("linear_num_value_heads")
    width = config.integer("linear_value_head_dim")
    if width != config.integer("linear_key_head_dim"):
        raise config.fail("linear_key_head_dim is not linear_value_head_dim, which GGUF cannot say")
    keys |= {
        "ssm.conv_kernel": config.integer("linear_conv_kernel_dim"),
        "ssm.state_size": width,
        "ssm.group_count": config.integer("linear_num_key_heads"),
        "ssm.time_step_rank": n_values,
        "ssm.inner_size": n_values * width,
        "full_attention_interval": config.integer("full_attention_interval", 4),
    }
    if config.get("layer_types") is not None:
        keys["attention.recurrent_layers"] = _recurrent_layers(config, keys["block_count"])
    sections = _SECTIONS
    if rope_of(config).get("mrope_section") is not None:
        sections = [int(n) for n in rope_of(config).numbers("mrope_section", len(_SECTIONS))]
    keys["rope.dimension_sections"] = np.array([*sections, 0], np.int32)


def _recurrent_layers(config: JsonObject, n_layers: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    layer_types = config.get("layer_types")
    if not isinstance(layer_types, list) or len(layer_types) != n_layers:
        raise config.fail_value("layer_types", f"a list of {n_layers} kinds")
    if any(layer_type not in _LAYER_TYPES for layer_type in layer_types):
        raise config.fail("layer_types has kinds besides linear_attention and full_attention")
    return np.array([layer_type == "linear_attention" for layer_type in layer_types])


def add_predictor(converted: ConvertedConfig, source_names: Iterable[str]) -> int:
    """Add the blocks of the predictor, which follow the layers, if the model has one.

    Returns:
        Number of layers before them.
    """
    keys = converted.keys
    n_layers: int = keys["block_count"]
    matches = (_PREDICTOR_LAYER.fullmatch(name) for name in source_names)
    n_blocks = 1 + max((int(match[1]) for match in matches if match), default=-1)
    if n_blocks:
        keys |= {"block_count": n_layers + n_blocks, "nextn_predict_layers": n_blocks}
        if "attention.recurrent_layers" in keys:
            keys["attention.recurrent_layers"] = np.pad(
                keys["attention.recurrent_layers"], (0, n_blocks)
            )
    return n_layers


def predictor_layer_name(source_name: str, n_layers: int) -> str:
    """Return the name of a tensor, with the predictor's layers numbered after the others."""
    match = _PREDICTOR_LAYER.fullmatch(source_name)
    if match is None:
        return source_name
    return f"model.layers.{n_layers + int(match[1])}.{match[2]}"


def predictor_name(source_name: str, n_layers: int) -> str | None:
    """Return the name in GGUF of a tensor that belongs to the predictor, but to no layer; None for
    other tensors."""
    own_name, _, kind = source_name.removeprefix("model.").rpartition(".")
    name = _PREDICTOR_NAMES.get(own_name.removeprefix("mtp."))
    if name is None or not own_name.startswith("mtp."):
        return None
    return f"blk.{n_layers}.nextn.{name}.{kind}"


def head_order(converted: ConvertedConfig, source_name: str) -> tuple[Order | None, Order | None]:
    """Return the order of rows and the order of columns of a delta net's tensor; None for the order
    of the source."""
    width = converted.keys["ssm.state_size"]
    n_keys = converted.keys["ssm.group_count"]
    part = source_name.partition(LINEAR_ATTENTION)[2].partition(".")[0]
    if part in ("in_proj_qkv", "conv1d"):
        n_others = 2 * n_keys * width
        values = n_others + _value_order(converted, width)
        return np.concatenate([np.arange(n_others), values]), None
    if part == "in_proj_z":
        return _value_order(converted, width), None
    if part in ("in_proj_a", "in_proj_b", "A_log", "dt_bias"):
        return _value_order(converted, 1), None
    if part == "out_proj":
        return None, _value_order(converted, width)
    return None, None


def _value_order(converted: ConvertedConfig, width: int) -> Order:
    n_values = converted.keys["ssm.time_step_rank"]
    n_keys = converted.keys["ssm.group_count"]
    if not n_keys or n_values % n_keys:
        raise ConversionError(
            f"config.json: {n_values} value heads do not divide among {n_keys} key heads"
        )
    order: Order = np.arange(n_values * width).reshape(n_keys, -1, width).swapaxes(0, 1).ravel()
    return order
