"""Hyperparameters: what is read from a sound file, and one line per way they can be wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.config import ModelConfig
from engine.errors import UnsupportedArchitectureError
from engine.gguf.read import read_gguf
from engine.models import read_config
from tests.engine import tiny_gguf
from tests.engine.refusals import Break, broken, check, refusal
from tests.engine.tiny_gguf import F64, I32, U64

NAN = float("nan")
INF = float("inf")


def config_of(path: Path) -> ModelConfig:
    gguf = read_gguf(path)
    try:
        return read_config(gguf)
    finally:
        gguf.close()


def test_every_field_is_read_from_its_key(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf", "qwen3", dim=96, head_dim=32, n_layers=3)
    assert config_of(path).summary() == {
        "architecture": "qwen3",
        "dim": 96,
        "norm_eps": float(np.float32(1e-5)),
        "context_length": 128,
        "vocab_size": 267,
        "embedding_scale": 1.0,
        "residual_scale": 1.0,
        "logit_scale": 1.0,
        "n_layers": 3,
        "n_heads": 4,
        "n_kv_heads": 2,
        "key_dim": 32,
        "value_dim": 32,
        "rope_theta": 10000.0,
        "rope_dim": 32,
        "rope_scaling_factor": 1.0,
        "rope_magnitude": 1.0,
        "scale": 32**-0.5,
        "head_norms": True,
        "hidden_dim": 96,
        "gate": "silu",
        "norm_before": True,
    }


def test_widths_of_all_heads_follow_from_head_dim_not_from_dim(tmp_path: Path) -> None:
    config = config_of(tiny_gguf.write(tmp_path / "model.gguf", "qwen3", dim=96, head_dim=32))
    assert (config.attentions[0].q_dim, config.attentions[0].k_dim, config.attentions[0].v_dim) == (
        128,
        64,
        64,
    )


def test_what_older_files_leave_out_follows_from_the_rest(tmp_path: Path) -> None:
    tiny = tiny_gguf.model(n_kv_heads=4)
    for key in (
        "attention.key_length",
        "attention.value_length",
        "attention.head_count_kv",
        "rope.dimension_count",
    ):
        tiny.drop(f"llama.{key}")
    tiny.drop("llama.rope.freq_base")
    [attention] = set(config_of(tiny.write(tmp_path / "model.gguf")).attentions.values())
    assert attention.rope is not None
    assert (attention.key_dim, attention.n_kv_heads, attention.rope.dim, attention.rope.theta) == (
        16,
        4,
        16,
        10000.0,
    )


def test_part_of_a_head_may_be_rotated(tmp_path: Path) -> None:
    assert (
        config_of(broken(tmp_path, lambda t: t.set("llama.rope.dimension_count", 8))).ropes[0].dim
        == 8
    )


def test_the_same_value_for_every_layer_counts_as_one(tmp_path: Path) -> None:
    def per_layer(tiny: tiny_gguf.TinyGGUF) -> None:
        tiny.set("llama.attention.head_count_kv", np.array([2, 2], "<i4"))
        tiny.set("llama.feed_forward_length", np.array([96, 96], "<u4"))

    config = config_of(broken(tmp_path, per_layer))
    assert config == config_of(broken(tmp_path, lambda t: None))


def test_integers_of_any_width_are_read(tmp_path: Path) -> None:
    assert config_of(broken(tmp_path, lambda t: t.set("llama.block_count", 2, U64))).n_layers == 2


@pytest.mark.parametrize(
    ("entries", "factor"),
    [
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scaling.factor": 4.0}, 4.0),
        ({"rope.scale_linear": 2.0}, 2.0),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
        ({"rope.scaling.type": "none"}, 1.0),
    ],
)
def test_linear_rope_scaling_is_read(
    entries: dict[str, Any], factor: float, tmp_path: Path
) -> None:
    def scale(tiny: tiny_gguf.TinyGGUF) -> None:
        for key, value in entries.items():
            tiny.set(f"llama.{key}", value)

    assert config_of(broken(tmp_path, scale)).ropes[0].scaling_factor == factor


@pytest.mark.parametrize(
    "key", ["rope.scaling.factor", "rope.freq_base", "attention.layer_norm_rms_epsilon"]
)
def test_a_number_too_small_for_float32_is_refused(key: str, tmp_path: Path) -> None:
    assert f"llama.{key} is 5e-324" in refusal(
        broken(tmp_path, lambda t: t.set(f"llama.{key}", 5e-324, F64))
    )


def test_an_unknown_architecture_has_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedArchitectureError):
        config_of(broken(tmp_path, lambda t: t.set("general.architecture", "gpt9")))


def test_a_trained_small_model_is_read(shared_data: Path) -> None:
    config = config_of(shared_data / "models" / "stories260K.gguf")
    layer = config.layers[0]
    assert (config.dim, layer.feed_forward.hidden_dim, config.n_layers, layer.mixer.key_dim) == (
        64,
        172,
        5,
        8,
    )
    assert config.vocab_size == 512


ARCHITECTURE: dict[str, tuple[Break, str]] = {
    "missing": (lambda t: t.drop("general.architecture"), "general.architecture is missing"),
    "unknown": (
        lambda t: t.set("general.architecture", "mamba"),
        "'mamba' is not supported yet (Mamba, recurrent); use",
    ),
    "unheard of": (
        lambda t: t.set("general.architecture", "gpt9"),
        "'gpt9' is not supported; supported: llama",
    ),
    "empty": (lambda t: t.set("general.architecture", ""), "general.architecture"),
    "an integer": (lambda t: t.set("general.architecture", 7), "must be a string"),
    "an array": (lambda t: t.set("general.architecture", ["llama"]), "must be a string"),
    "not utf-8": (lambda t: t.set("general.architecture", b"\xff\xfe"), r"'\xff\xfe'"),
    "escapes": (lambda t: t.set("general.architecture", "\x1b]0;x\x07"), r"\x1b]0;x\x07"),
    "bidi": (lambda t: t.set("general.architecture", "\u202elmth"), r"\u202e"),
    "markup": (lambda t: t.set("general.architecture", "[/][@click=app.quit]"), "not supported"),
    "newlines": (lambda t: t.set("general.architecture", "a\nb"), r"a\x0ab"),
    "1 MB": (lambda t: t.set("general.architecture", "\x00" * 10**6), "..."),
    "experts used": (
        lambda t: t.set("llama.expert_count", 8),
        "llama.expert_used_count is missing",
    ),
    "more experts than any": (
        lambda t: t.set("llama.expert_count", 1025),
        "llama.expert_count is 1025",
    ),
    "a part of a split model": (lambda t: t.set("split.count", 3), "split.count"),
    "split.count a string": (lambda t: t.set("split.count", "3"), "split.count"),
    "an adapter": (lambda t: t.set("general.type", "adapter"), "general.type"),
    "an encoder": (lambda t: t.set("llama.attention.causal", False), "llama.attention.causal"),
}

REQUIRED = (
    "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.layer_norm_rms_epsilon", "context_length",
)  # fmt: skip

BAD_VALUES: dict[str, tuple[Any, ...]] = {
    "block_count": (0, 1, 3, 2**31, (-1, I32), "2", 2.0, True, np.array([2], "<u4")),
    "embedding_length": (0, 32, 65, 2**31, "64"),
    "feed_forward_length": (0, 95, 97, 2**31, "96", np.array([96], "<u4"),
                            np.array([96, 64], "<u4")),
    "attention.head_count": (0, 3, 5, 128, 2**31, "4", 4.0),
    "attention.head_count_kv": (0, 3, 8, 2**31, "2", np.array([2, 2, 2], "<u4"),
                                np.array([2, 1], "<u4"),
                                np.array([2.0, 2.0], "<f4"), np.array([], "<u4")),
    "attention.layer_norm_rms_epsilon": (NAN, INF, -1e-5, 0.0, 2.0, "1e-5", True),
    "attention.key_length": (0, 4, 12, 24, 4096, 2**31, "16"),
    "attention.value_length": (8, 0, "16"),
    "rope.dimension_count": (0, 1, 15, 18, 2**31, "16"),
    "rope.freq_base": (NAN, INF, -1.0, 0.0, "10000"),
    "rope.scaling.type": ("yam", "long", "\x1b[2J", 3),
    "rope.scaling.factor": (NAN, 0.0, -2.0, "2"),
    "context_length": (0, 2**32 - 1, "128", (-1, I32)),
}  # fmt: skip


def test_a_vocabulary_size_unlike_the_tokens_is_ignored(tmp_path: Path) -> None:
    check(broken(tmp_path, lambda t: t.set("llama.vocab_size", 4000)))


@pytest.mark.parametrize("key", ["general.type", "llama.attention.causal"])
@pytest.mark.parametrize("length", [0, 1, 2])
def test_an_array_in_place_of_a_single_value_is_refused(
    key: str, length: int, tmp_path: Path
) -> None:
    assert key in refusal(broken(tmp_path, lambda t: t.set(key, np.ones(length, bool))))


@pytest.mark.parametrize("case", ARCHITECTURE)
def test_what_the_engine_cannot_run_is_refused_by_name(case: str, tmp_path: Path) -> None:
    break_it, word = ARCHITECTURE[case]
    assert word in refusal(broken(tmp_path, break_it))


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_hyperparameter_is_named(key: str, tmp_path: Path) -> None:
    assert f"llama.{key} is missing" in refusal(broken(tmp_path, lambda t: t.drop(f"llama.{key}")))


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, values in BAD_VALUES.items() for value in values],
    ids=str,
)
def test_a_bad_hyperparameter_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    value, value_type = value if isinstance(value, tuple) else (value, None)
    message = refusal(broken(tmp_path, lambda t: t.set(f"llama.{key}", value, value_type)))
    # A number that is sound by itself is found out by the keys or tensors it contradicts.
    assert any(
        word in message
        for word in (key, "tensor ", "llama.embedding_length", "llama.attention.value_length")
    )


def test_a_width_that_is_no_multiple_of_8_is_refused(tmp_path: Path) -> None:
    def narrow(tiny: tiny_gguf.TinyGGUF) -> None:
        tiny.set("llama.embedding_length", 36)
        tiny.set("llama.attention.key_length", 16)
        tiny.set("llama.attention.value_length", 16)

    assert "llama.embedding_length is 36: must be a multiple of 8" in refusal(
        broken(tmp_path, narrow)
    )


def test_a_trained_context_of_ten_million_allocates_nothing(tmp_path: Path) -> None:
    check(broken(tmp_path, lambda t: t.set("llama.context_length", 10**7)))


VOCABULARY_LENGTH: dict[str, tuple[Break, str]] = {
    "no list": (lambda t: t.drop("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens is missing"),
    "empty list": (lambda t: t.set("tokenizer.ggml.tokens", []), "tokenizer.ggml.tokens is empty"),
    "numbers": (lambda t: t.set("tokenizer.ggml.tokens", np.arange(9, dtype="<u4")),
                "tokenizer.ggml.tokens"),
    "a string": (lambda t: t.set("tokenizer.ggml.tokens", "abc"), "tokenizer.ggml.tokens"),
    "more than embedding rows": (lambda t: t.set("tokenizer.ggml.tokens", ["a"] * 400),
                                 "token_embd.weight"),
    "fewer": (lambda t: t.set("tokenizer.ggml.tokens", ["a"] * 100), "token_embd.weight"),
    "far more": (lambda t: t.set("tokenizer.ggml.tokens", [""] * 10**5), "token_embd.weight"),
}  # fmt: skip


@pytest.mark.parametrize("case", VOCABULARY_LENGTH)
def test_a_token_list_that_does_not_fit_is_refused(case: str, tmp_path: Path) -> None:
    break_it, word = VOCABULARY_LENGTH[case]
    assert word in refusal(broken(tmp_path, break_it))
