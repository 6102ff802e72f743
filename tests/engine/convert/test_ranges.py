"""Ranges and types of all numbers in a model's settings are checked first."""

from __future__ import annotations

from typing import Any

import pytest

from engine.convert.bounded import MAX_DEPTH, MAX_VALUES, JsonObject, parse_object
from engine.convert.hyperparameters import ConvertedConfig, describe
from engine.convert.ranges import REAL, WHOLE
from engine.convert.recipes import RECIPES, Recipe
from engine.errors import ConversionError

SOUND: dict[str, Any] = {
    "num_hidden_layers": 2, "max_position_embeddings": 4096, "hidden_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96,
    "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "sliding_window": 128, "type_vocab_size": 2,
    "rms_norm_eps": 1e-6, "layer_norm_eps": 1e-5, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    "partial_rotary_factor": 0.5, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0, "clip_qkv": 8.0, "attention_multiplier": 0.5,
    "embedding_multiplier": 12.0, "residual_multiplier": 0.2, "logits_scaling": 8.0,
    "logit_scale": 0.06, "multi_query": True, "use_parallel_residual": True,
    "position_embedding_type": "rope",
    "layer_types": ["full_attention", "sliding_attention"],
}  # fmt: skip
DELTA_NET: dict[str, Any] = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_value_head_dim": 32,
    "linear_key_head_dim": 32, "linear_conv_kernel_dim": 4, "full_attention_interval": 2,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 2048},
    "yarn": {"factor": 4.0, "attention_factor": 1.1, "beta_fast": 32, "beta_slow": 1,
             "original_max_position_embeddings": 2048},
    "longrope": {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "attention_factor": 1.1,
                 "original_max_position_embeddings": 2048},
}  # fmt: skip
HOSTILE: tuple[Any, ...] = (
    -1, 10**9 + 10**8, 10**400, 2e7, 1e30, -1e30, 1e300, float("nan"), float("inf"), "64", "\ud800",
    True, [], {}, [[[]]], [10**9] * 3, {"a": 1},
)  # fmt: skip


def described(recipe: Recipe, values: dict[str, Any]) -> ConvertedConfig:
    config = JsonObject(values, "config.json")
    description = describe(config, recipe.has_rope)
    for add in recipe.more_keys:
        add(config, description)
    return description


def check_refused_or_unread(recipe: Recipe, values: dict[str, Any], key: str) -> bool:
    """Return whether a key is refused; any other key must not change the size of the result."""
    try:
        model = described(recipe, values)
    except ConversionError as error:
        line = str(error)
    else:
        assert sum(tensor.size for tensor in model.tensors.values()) < 100
        return False
    assert line.isprintable()
    assert line.startswith("config.json: ")
    assert any(name in line for name in (key, "heads", "query_pre_attn_scalar"))
    assert len(line) < 200
    return True


def is_in_range(key: str, value: Any) -> bool:
    least, most = {**WHOLE, **REAL}.get(key, (1, 0))
    return type(value) in (int, float) and least <= value <= most


@pytest.mark.parametrize("name", RECIPES)
def test_settings_out_of_range_are_named_for_every_architecture(name: str) -> None:
    recipe = RECIPES[name]
    sound = SOUND
    if recipe.is_delta_net:
        sound = SOUND | DELTA_NET
    described(recipe, sound)
    for key in sound:
        for value in HOSTILE:
            check_refused_or_unread(recipe, {**sound, key: value}, key)
    for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"):
        for value in HOSTILE:
            assert check_refused_or_unread(recipe, {**sound, key: value}, key)


@pytest.mark.parametrize("rope_type", SCALINGS)
@pytest.mark.parametrize("section", ["rope_scaling", "rope_parameters"])
def test_bad_numbers_of_rope_scaling_are_named(section: str, rope_type: str) -> None:
    recipe = RECIPES["LlamaForCausalLM"]
    sound = {"rope_type": rope_type, **SCALINGS[rope_type]}
    described(recipe, {**SOUND, section: sound})
    for key in (*SCALINGS[rope_type], "rope_theta", "partial_rotary_factor", "rope_type"):
        for value in HOSTILE:
            is_refused = check_refused_or_unread(
                recipe, {**SOUND, section: {**sound, key: value}}, key
            )
            assert (
                is_refused
                or is_in_range(key, value)
                or (rope_type == "dynamic" and key in SCALINGS[rope_type])
            )


def test_ranges_include_current_models() -> None:
    large = {"num_hidden_layers": 126, "max_position_embeddings": 10485760, "hidden_size": 16384,
             "num_attention_heads": 128, "intermediate_size": 53248, "num_local_experts": 512,
             "head_dim": 512,
             "num_experts_per_tok": 22}  # fmt: skip
    assert all(WHOLE[key].least <= value <= WHOLE[key].most for key, value in large.items())
    bases = {
        "rope_theta": 4.6e10,
        "partial_rotary_factor": 0.25,
        "factor": 128.0,
        "rms_norm_eps": 1e-12,
    }
    assert all(REAL[key].least <= value <= REAL[key].most for key, value in bases.items())


def test_deep_and_numerous_values_are_refused() -> None:
    for depth in (MAX_DEPTH + 2, 50_000):
        with pytest.raises(
            ConversionError, match=rf"^x\.json: is nested more than {MAX_DEPTH} deep"
        ):
            parse_object(b'{"a": ' + b"[" * depth + b"]" * depth + b"}", "x.json")
    parse_object(b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", "x.json")
    with pytest.raises(ConversionError, match=r"^x\.json: has more than"):
        parse_object(b'{"a": [' + b"0," * MAX_VALUES + b"0]}", "x.json")
