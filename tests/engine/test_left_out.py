"""Keys that a family's files may leave out: what llama.cpp takes in their place, and those that
must be there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config import Attention, ModelConfig
from engine.errors import GGUFError
from engine.gguf.contents import GGUFFile
from engine.gguf.read import read_gguf
from engine.models import ARCHITECTURES, read_config
from engine.models.reading import LAYER_EPS, RMS_EPS
from tests.engine import tiny_gguf
from tests.engine.refusals import refusal
from tests.engine.test_config import config_of

Value = Callable[[ModelConfig], Any]
SLIDING = 0
WHOLE = 3


def _attention(number: int, read: Callable[[Attention], Any]) -> Value:
    return lambda config: read(config.layers[number].mixer)


def _rope(number: int, field: str) -> Value:
    return _attention(number, lambda layer: getattr(layer.rope, field))


EVERYWHERE: list[tuple[str, Value, Any]] = [
    ("attention.head_count_kv", _attention(0, lambda layer: layer.n_kv_heads), 4),
    (
        "attention.key_length",
        _attention(0, lambda layer: (layer.key_dim, layer.value_dim)),
        (16, 16),
    ),
    ("attention.value_length", _attention(0, lambda layer: layer.value_dim), 16),
    ("rope.dimension_count", _rope(0, "dim"), 16),
    ("rope.freq_base", _rope(0, "theta"), 10000.0),
    ("rope.scaling.type", _rope(0, "yarn"), None),
]
"""Key, its setting in the configuration, and the default if the file has no such key."""
OF_FAMILIES: dict[str, list[tuple[str, Value, Any]]] = {
    "gemma2": [
        ("attention.sliding_window", _attention(SLIDING, lambda layer: layer.window), 4096),
        ("attention.sliding_window_pattern", _attention(1, lambda layer: layer.window), None),
        ("attn_logit_softcapping", _attention(0, lambda layer: layer.soft_cap), 50.0),
        ("final_logit_softcapping", lambda config: config.logit_soft_cap, 30.0),
    ],
    "gemma3": [
        ("attention.sliding_window", _attention(SLIDING, lambda layer: layer.window), None),
        ("attention.sliding_window_pattern", _attention(1, lambda layer: layer.window), 6),
        ("rope.freq_base_swa", _rope(SLIDING, "theta"), 10000.0),
        ("rope.freq_base", _rope(1, "theta"), 10000.0),  # of layers without a window
        ("final_logit_softcapping", lambda config: config.logit_soft_cap, None),
    ],
    "gemma4": [
        (
            "attention.key_length",
            _attention(WHOLE, lambda layer: (layer.key_dim, layer.value_dim)),
            (16, 16),
        ),
        ("attention.value_length", _attention(WHOLE, lambda layer: layer.value_dim), 16),
        ("attention.shared_kv_layers", lambda config: config.last_storing, 3),
        ("rope.dimension_count", _rope(WHOLE, "dim"), 16),
        ("rope.freq_base", _rope(WHOLE, "theta"), 10000.0),
        ("rope.freq_base_swa", _rope(SLIDING, "theta"), 10000.0),
        ("embedding_length_per_layer_input", lambda config: config.per_layer_width, 0),
        ("final_logit_softcapping", lambda config: config.logit_soft_cap, None),
    ],
    "cohere2": [("attention.sliding_window_pattern", _attention(2, lambda layer: layer.window), 6)],
    "command-r": [("logit_scale", lambda config: config.logit_scale, 1.0)],
    "granite": [
        ("embedding_scale", lambda config: config.embedding_scale, 1.0),
        ("residual_scale", lambda config: config.residual_scale, 1.0),
        ("attention.scale", _attention(0, lambda layer: layer.scale), 0.25),
        ("rope.scaling.finetuned", _rope(0, "dim"), 16),
    ],
    "minicpm": [
        ("embedding_scale", lambda config: config.embedding_scale, 12.0),
        ("residual_scale", lambda config: config.residual_scale, 0.7),
        ("logit_scale", lambda config: config.logit_scale, 0.25),
    ],
    "mistral3": [
        ("attention.temperature_scale", _rope(0, "query_growth"), 0.0),
        ("rope.scaling.original_context_length", _rope(0, "original_context"), 128),
        ("rope.scaling.attn_factor", lambda config: config.ropes[0].magnitude, 1.0),
    ],
    "phi3": [
        ("rope.scaling.original_context_length", _rope(0, "original_context"), 128),
        ("rope.scaling.attn_factor", _rope(0, "magnitude"), 1.0),
    ],
    "mpt": [
        ("attention.max_alibi_bias", _attention(0, lambda layer: layer.alibi), 0.0),
        ("attention.clamp_kqv", _attention(0, lambda layer: layer.bound), None),
    ],
    "olmo": [("attention.clamp_kqv", _attention(0, lambda layer: layer.bound), None)],
    "jais": [("attention.max_alibi_bias", _attention(0, lambda layer: layer.alibi), 0.0)],
    "muse-glimmer": [
        ("attention.sliding_window_pattern", _attention(WHOLE, lambda layer: layer.window), None),
        ("final_logit_softcapping", lambda config: config.logit_soft_cap, None),
    ],
    "hunyuan-dense": [("rope.scaling.alpha", _rope(0, "theta"), 10000.0)],
    "plm": [("attention.head_count_kv", _attention(0, lambda layer: layer.n_kv_heads), 1)],
    "minicpm3": [("attention.head_count_kv", _attention(0, lambda layer: layer.n_kv_heads), 1)],
    "smallthinker": [  # its first layer is not turned
        ("rope.dimension_count", _rope(1, "dim"), 16),
        ("rope.freq_base", _rope(1, "theta"), 10000.0),
        ("rope.scaling.type", _rope(1, "yarn"), None),
    ],
    "deepseek2": [
        ("attention.head_count_kv", _attention(0, lambda layer: layer.n_kv_heads), 1),
        (
            "attention.q_lora_rank",
            _attention(0, lambda layer: layer.latent and layer.latent.query_rank),
            0,
        ),
    ],
}
LATENT = {"attention.key_length", "attention.value_length", "rope.dimension_count"}
UNREAD = {"deepseek2": LATENT, "plm": LATENT, "minicpm3": LATENT}
"""Keys of ``EVERYWHERE`` that a family ignores or requires."""
REQUIRED = {
    "cohere2": ["attention.sliding_window", "logit_scale"],
    "muse-glimmer": ["attention.sliding_window", "logit_scale"],
    "lfm2": ["shortconv.l_cache"],
    "qwen35": [f"ssm.{key}" for key in ("conv_kernel", "state_size")],
    "qwen35moe": ["ssm.conv_kernel", "expert_count"],
    "qwen3next": ["ssm.state_size", "expert_used_count"],
    "lfm2moe": ["shortconv.l_cache", "expert_feed_forward_length"],
    "deepseek": ["expert_shared_count", "expert_feed_forward_length"],
    "glm4moe": ["expert_shared_count"],
    "falcon-h1": ["ssm.group_count"],
    "granitehybrid": ["logit_scale", "ssm.inner_size"],
    "nemotron_h": ["ssm.time_step_rank"],
    "nemotron_h_moe": ["ssm.time_step_rank", "expert_shared_feed_forward_length"],
    "deepseek2": ["attention.kv_lora_rank", "attention.value_length_mla", "rope.dimension_count"],
    "plm": ["attention.kv_lora_rank"],
    "minicpm3": ["attention.q_lora_rank", "attention.kv_lora_rank", "attention.key_length",
                 "rope.dimension_count"],
    "granite": ["logit_scale"],
    "gptneox": ["use_parallel_residual"],
    "dbrx": ["attention.clamp_kqv"],
    "gemma4": [
        "attention.sliding_window", "attention.sliding_window_pattern", "attention.key_length_swa",
        "attention.value_length_swa", "rope.dimension_count_swa",
    ],
}  # fmt: skip
"""Keys in addition to those of every model, and the key of the constant that norms add."""
EITHER_EPS = {"nemotron_h", "nemotron_h_moe"}
"""Families whose norms add the value of one of two keys."""


@pytest.fixture(scope="module", params=ARCHITECTURES)
def gguf(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GGUFFile]:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    opened = read_gguf(tiny_gguf.write(path, request.param, n_layers=4, n_kv_heads=4))
    yield opened
    opened.close()


def _without(gguf: GGUFFile, *keys: str) -> GGUFFile:
    names = {f"{gguf.metadata['general.architecture']}.{key}" for key in keys}
    return replace(
        gguf, metadata={name: value for name, value in gguf.metadata.items() if name not in names}
    )


def test_a_key_left_out_has_the_value_of_the_reference(gguf: GGUFFile) -> None:
    architecture = gguf.metadata["general.architecture"]
    turns = bool(read_config(gguf).ropes)
    everywhere = [case for case in EVERYWHERE if turns or not case[0].startswith("rope.")]
    everywhere = [case for case in everywhere if case[0] not in UNREAD.get(architecture, ())]
    cases = {case[0]: case for case in [*everywhere, *OF_FAMILIES.get(architecture, [])]}
    for key, value_of, expected in cases.values():
        keys = [key, "attention.value_length"] if key == "attention.key_length" else [key]
        assert value_of(read_config(_without(gguf, *keys))) == pytest.approx(expected), key


def test_a_key_that_the_reference_asks_for_must_be_there(gguf: GGUFFile) -> None:
    architecture = gguf.metadata["general.architecture"]
    shared = [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
    ]
    eps = [key for key in (RMS_EPS, LAYER_EPS) if f"{architecture}.{key}" in gguf.metadata]
    assert len(eps) == 1
    for key in [
        *shared,
        *REQUIRED.get(architecture, []),
        *(eps if architecture not in EITHER_EPS else []),
    ]:
        with pytest.raises(GGUFError, match=f"^model.gguf: {architecture}.{key} is missing$"):
            read_config(_without(gguf, key))


@pytest.mark.parametrize(
    ("architecture", "theta"), [("gemma2", 700.0), ("cohere2", 5000.0), ("olmo2", 5000.0)]
)
def test_windows_have_the_rope_base_of_the_others_or_their_key(
    architecture: str, theta: float, tmp_path: Path
) -> None:
    described = tiny_gguf.model(architecture, n_layers=4)
    described.set(f"{architecture}.rope.freq_base", 5000.0)
    described.set(f"{architecture}.attention.sliding_window", 6)
    sliding = _rope(SLIDING, "theta")
    assert sliding(config_of(described.write(tmp_path / "m.gguf"))) == 5000.0
    described.set(f"{architecture}.rope.freq_base_swa", 700.0)
    config = config_of(described.write(tmp_path / "m.gguf"))
    assert sliding(config) == theta
    full_thetas = {
        layer.rope.theta
        for layer in config.attentions.values()
        if layer.rope is not None and layer.window is None
    }
    assert full_thetas <= {5000.0}


@pytest.mark.parametrize("architecture", ["gemma2", "cohere2", "exaone4"])
def test_a_window_of_nought_is_refused_where_layers_slide(
    architecture: str, tmp_path: Path
) -> None:
    described = tiny_gguf.model(architecture, n_layers=64, dim=32, hidden_dim=16, n_heads=2)
    for window in (0, -1, 1 << 40):
        value_type = tiny_gguf.I64 if window else None
        described.set(f"{architecture}.attention.sliding_window", window, value_type)
        path = described.write(tmp_path / "model.gguf")
        assert f"{architecture}.attention.sliding_window is {window}" in refusal(path)


@pytest.mark.parametrize("architecture", ["gemma3", "olmo2"])
def test_a_window_of_nought_is_none_where_models_may_do_without(
    architecture: str, tmp_path: Path
) -> None:
    described = tiny_gguf.model(architecture)
    described.set(f"{architecture}.attention.sliding_window", 0)
    config = config_of(described.write(tmp_path / "m.gguf"))
    assert {layer.window for layer in config.attentions.values()} == {None}
