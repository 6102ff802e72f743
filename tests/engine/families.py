"""Tiny models whose windows, and whose ropes' original contexts, end within a few dozen tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.engine import tiny_gguf
from tests.engine.architectures import test_deepseek2
from tests.engine.architectures.rows import VARIANTS

WINDOW = 24
ORIGINAL = 64
N_CTX = 256
ConvertedConfig = tiny_gguf.TinyGGUF


def keyed(described: ConvertedConfig, **keys: Any) -> ConvertedConfig:
    """Return a model with further keys of its architecture."""
    architecture = described.value("general.architecture")
    for key, value in keys.items():
        described.set(f"{architecture}.{key}", value)
    return described


def sliding(architecture: str, pattern: Any, **arguments: Any) -> ConvertedConfig:
    """Return a model with a window whose layers slide by this pattern, or by the family's own."""
    described = tiny_gguf.model(architecture, **{"n_layers": 2, **arguments})
    keys = {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": pattern}
    return keyed(
        described, **(keys if pattern is not None else {"attention.sliding_window": WINDOW})
    )


def olmo3(pattern: list[bool], **arguments: Any) -> ConvertedConfig:
    """Return a model with sliding layers next to stretched ones."""
    described = sliding("olmo2", np.array(pattern), n_layers=len(pattern), **arguments)
    yarn = {"type": "yarn", "factor": 8.0, "original_context_length": ORIGINAL}
    return keyed(described, **{f"rope.scaling.{key}": value for key, value in yarn.items()})


def gemma4(slides: list[bool], **arguments: Any) -> ConvertedConfig:
    """Return a model of four layers whose last two store nothing."""
    return keyed(
        tiny_gguf.model("gemma4", slides=slides, **arguments),
        **{"attention.sliding_window": WINDOW},
    )


def exaone4(**arguments: Any) -> ConvertedConfig:
    """Return a model with windows, which only the largest file of this family has."""
    small = (
        {} if "quant" in arguments else {"dim": 32, "hidden_dim": 16, "n_heads": 2, "n_kv_heads": 1}
    )
    return sliding("exaone4", None, **{"n_layers": 64, **small, **arguments})


def baichuan(n_layers: int, **arguments: Any) -> ConvertedConfig:
    """Return a model whose number of layers decides whether heads are rotated."""
    small = (
        {}
        if arguments.get("quant") == "Q4_K"
        else {"dim": 32, "hidden_dim": 32, "n_heads": 4, "n_kv_heads": 4}
    )
    return tiny_gguf.model("baichuan", **{"n_layers": n_layers, **small, **arguments})


def phimoe(**arguments: Any) -> ConvertedConfig:
    """Return a model that rotates whole heads, the only kind that llama.cpp knows."""
    described = tiny_gguf.model("phimoe", **arguments)
    n_pairs = described.value("phimoe.attention.key_length") // 2
    described.add_vector("rope_factors_short.weight", np.linspace(1, 1.8, n_pairs))
    described.add_vector("rope_factors_long.weight", np.geomspace(1, 64, n_pairs))
    return keyed(
        described,
        **{"rope.scaling.original_context_length": ORIGINAL, "rope.scaling.attn_factor": 1.3},
    )


def nemotron_h(name: str = "nemotron_h", **arguments: Any) -> ConvertedConfig:
    """Return a model with all three kinds of layers, and the key of eps that llama.cpp reads."""
    described = tiny_gguf.model(name, n_layers=3, **arguments)
    described.drop(f"{name}.attention.layer_norm_rms_epsilon")
    return keyed(described, **{"attention.layer_norm_epsilon": 1e-5})


def named_end(described: ConvertedConfig) -> ConvertedConfig:
    """Return a model whose last token is the one that llama.cpp looks up by name."""
    tokens = tiny_gguf.spm_vocabulary()["tokenizer.ggml.tokens"]
    described.set("tokenizer.ggml.tokens", [*tokens[:-1], "<|endoftext|>"])
    return described


FAMILIES: dict[str, Callable[..., ConvertedConfig]] = {
    "gemma3": lambda **a: sliding("gemma3", 2, **a),
    "gemma2": lambda **a: sliding("gemma2", None, **{"tied": True, **a}),
    "gemma4": lambda **a: gemma4([True, False, True, False], **a),
    "phi3": lambda **a: named_end(
        VARIANTS["phi3 with longrope"].tiny(**{"context_length": N_CTX, **a})
    ),
    "mistral3": lambda **a: tiny_gguf.model("mistral3", **a),
    "olmo3": lambda **a: olmo3([True, False, True], **a),
    "cohere2": lambda **a: sliding("cohere2", 2, **a),
    "gpt-oss": lambda **a: sliding("gpt-oss", None, **a),
}
"""Tiny models with two or three layers of each kind."""
TWIN_ARGUMENTS: dict[str, Sequence[str]] = {
    "phi3": ["long"],
    "phimoe": ["long"],
    "minicpm3": ["long"],
}
"""Arguments that some twins need for a context beyond the original one."""
OTHERS: dict[str, Callable[..., ConvertedConfig]] = {
    "exaone4": exaone4,
    "phimoe": phimoe,
    "deepseek2": lambda **a: tiny_gguf.model(
        "deepseek2", query_rank=256, keys={**test_deepseek2.YARN, **test_deepseek2.SIGMOID}, **a
    ),
    "nemotron_h": nemotron_h,
    "nemotron_h_moe": lambda **a: nemotron_h("nemotron_h_moe", **a),
    "muse-glimmer": lambda **a: sliding("muse-glimmer", None, **{"n_layers": 4, **a}),
    "mellum": lambda **a: sliding("mellum", None, **{"n_layers": 4, **a}),
    "baichuan": lambda **a: baichuan(32, **a),
    "baichuan 13B": lambda **a: baichuan(40, **a),
    "minicpm3": lambda **a: keyed(
        tiny_gguf.model("minicpm3", **a), **{"rope.scaling.original_context_length": ORIGINAL}
    ),
    "smallthinker": lambda **a: keyed(
        tiny_gguf.model("smallthinker", n_layers=6, **a), **{"attention.sliding_window": 4096}
    ),
    "granite_swa": lambda **a: keyed(
        tiny_gguf.model("granite_swa", **a), **{"attention.sliding_window": WINDOW}
    ),
    "granite_swa with experts": lambda **a: keyed(
        VARIANTS["granite_swa with experts"].tiny(**a), **{"attention.sliding_window": WINDOW}
    ),
    "olmoe": lambda **a: tiny_gguf.model("olmoe", n_kv_heads=4, **a),
}


NARROW = {"deepseek2"}
"""Tiny model whose experts are not a multiple of 256 wide."""


def family(name: str, quant: str = "F32", **arguments: Any) -> ConvertedConfig:
    """Return the tiny model of a family or architecture with all keys that llama.cpp needs."""
    builder = FAMILIES.get(name) or OTHERS.get(name)
    arguments = {
        "context_length": N_CTX,
        "quant": "Q8_0" if quant == "Q4_K" and name in NARROW else quant,
        **arguments,
    }
    described = builder(**arguments) if builder else tiny_gguf.model(name, **arguments)
    if name in ("qwen35", "qwen35moe"):
        n_pairs = described.value(f"{name}.rope.dimension_count") // 2
        sections = np.array([*((n_pairs + more) // 3 for more in (2, 1, 0)), 0], "<i4")
        described.set(f"{name}.rope.dimension_sections", sections)
    return described
