"""Files that lie, of every architecture: each key that it reads and each tensor that it asks for,
made wrong in turn.

The cases are made of what the architecture itself asks for: keys are noted while a sound file is
read, with the lines that ask, tensors are those that it holds. What the same line reads of another
architecture is not made wrong again. A file is read once; what is made wrong afterwards is its
metadata or its table of tensors, which ``gguf/test_faults.py`` breaks at the level of bytes.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import EngineError
from engine.gguf.contents import GGUFFile
from engine.gguf.hyperparameters import Hyperparameters
from engine.gguf.read import read_gguf
from engine.models import ARCHITECTURES, expected_tensors, read_config
from engine.weights.weights import TensorSpec
from tests.engine import tiny_gguf
from tests.engine.architectures import DISTINCT, test_deepseek2
from tests.engine.refusals import weights_of
from tests.engine.test_scales import add_scales

NAN = float("nan")
INF = float("inf")
N_LAYERS = 2
HUGE = 1 << 40
SCALED: dict[str, dict[str, Any]] = {
    "as it is": {},
    "yarn": {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 8.0,
        "rope.scaling.original_context_length": 32,
    },
    "linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
}
"""Each kind of stretched rope has keys of its own."""
NO_NUMBERS = (
    NAN,
    INF,
    -INF,
    "x",
    "\x1b[2J\n",
    ["x"],
    np.array([], "<f4"),
    np.full(N_LAYERS + 1, 7, "<u4"),
)
"""Values that no numeric key may have, for all layers or for each."""
NO_COUNTS = (
    -1,
    HUGE,
    2.0,
    True,
    np.full(N_LAYERS, -1, "<i4"),
    np.full(N_LAYERS, NAN, "<f4"),
    *NO_NUMBERS,
)
WORDS = {"rope.scaling.type", "general.type"}
FLAGS = {
    "attention.causal",
    "rope.scaling.finetuned",
    "expert_weights_norm",
    "use_parallel_residual",
}
MAY_BE_NOUGHT = {
    "attention.sliding_window", "attention.shared_kv_layers", "embedding_length_per_layer_input",
    "expert_group_count",
    "expert_shared_feed_forward_length", "leading_dense_block_count", "nextn_predict_layers",
    "attention.head_count",
    "attention.head_count_kv", "feed_forward_length",
}  # fmt: skip
"""Wrong values of keys of some families; ``CONTRADICTIONS`` has keys that contradict others."""
COUNTS = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length",
    "attention.sliding_window", "attention.sliding_window_pattern", "rope.dimension_count",
    "attention.shared_kv_layers", "attention.key_length_swa", "attention.value_length_swa",
    "rope.dimension_count_swa", "embedding_length_per_layer_input",
    "rope.scaling.original_context_length", "expert_count", "expert_used_count",
    "expert_group_count",
    "expert_group_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length",
    "expert_shared_count",
    "expert_gating_func", "leading_dense_block_count", "interleave_moe_layer_step",
    "nextn_predict_layers",
    "shortconv.l_cache", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size",
    "ssm.time_step_rank",
    "ssm.group_count", "full_attention_interval", "attention.kv_lora_rank", "attention.q_lora_rank",
    "attention.key_length_mla", "attention.value_length_mla",
}  # fmt: skip
POSITIVE = {
    "rope.freq_base", "rope.freq_base_swa",
    "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "embedding_scale", "residual_scale", "logit_scale", "attn_logit_softcapping",
    "final_logit_softcapping",
}  # fmt: skip
CONTRADICTIONS: dict[str, tuple[Any, ...]] = {
    "block_count": (0, 1, 3),
    "embedding_length": (0, 32, 65, 72, 128),
    "feed_forward_length": (0, 95, 104, np.array([96, 104], "<u4")),
    "attention.head_count": (0, 3, 5, 8, np.array([8, 4], "<u4")),
    "attention.head_count_kv": (0, 3, 1, 8, np.array([4, 1], "<u4")),
    "attention.key_length": (0, 4, 12, 24, 4096),
    "attention.value_length": (0, 8, 24),
    "rope.dimension_count": (0, 1, 15, 18, 32),
    "attention.sliding_window_pattern": (
        0,
        np.ones(N_LAYERS - 1, bool),
        np.ones(N_LAYERS + 1, bool),
    ),
    "attention.shared_kv_layers": (1, N_LAYERS, N_LAYERS + 1, 40),
    "attention.key_length_swa": (0, 4, 12, 16, 32, 4096),
    "attention.value_length_swa": (0, 4, 12, 16, 4096),
    "rope.dimension_count_swa": (0, 1, 3, 7, 16),
    "embedding_length_per_layer_input": (0, 4, 24, 31, 33, 40, 64),
    "vocab_size": (0, 1, 10**6),
    "shortconv.l_cache": (0, 1, 2, 4, 64),
    "attention.recurrent_layers": (
        np.zeros(N_LAYERS, bool),
        np.ones(N_LAYERS, bool),
        np.ones(N_LAYERS + 1, bool),
    ),
    "ssm.conv_kernel": (0, 1, 2, 3, 5),
    "ssm.inner_size": (0, 64, 96, 256),
    "ssm.state_size": (0, 16, 31, 64, 96),
    "ssm.time_step_rank": (0, 1, 2, 3, 8),
    "ssm.group_count": (0, 1, 3, 4, 8),
    "expert_count": (5, 7, 12),
    "expert_used_count": (0, 9, 65),
    "expert_group_count": (3, 5, 7),
    "expert_group_used_count": (0, 5),
    "expert_feed_forward_length": (0, 63, 72),
    "expert_shared_feed_forward_length": (63, 72),
    "expert_shared_count": (0, 1, 3),
    "expert_gating_func": (0, 4),
    "leading_dense_block_count": (0, 2),
    "interleave_moe_layer_step": (0, 3),
    "nextn_predict_layers": (1, 2),
    "attention.kv_lora_rank": (0, 8, 31, 40, 1024),
    "attention.q_lora_rank": (0, 8, 33, 128),
    "attention.key_length_mla": (0, 16, 32, 40, 100, 128),
    "attention.value_length_mla": (0, 8, 12, 24, 32),
}
"""Values that are numbers of the right kind and cannot be: other keys or the tensors say so."""
UNREAD = {
    "feed_forward_length": {
        "qwen3moe", "gpt-oss", "ernie4_5-moe", "bailingmoe2", "dots1", "nemotron_h",
        "nemotron_h_moe", "lfm2moe",
        "deepseek", "deepseek2", "bailingmoe", "glm4moe", "qwen3vlmoe", "mellum", "smallthinker",
    },
    "nextn_predict_layers": {
        "deepseek2", "glm4moe", "qwen35", "qwen35moe", "qwen3next", "nemotron_h", "nemotron_h_moe",
    },
    **{f"ssm.{name}": {"nemotron_h with a feed-forward", "nemotron_h_moe"} for name in (
        "conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count",
    )},
}  # fmt: skip
"""Keys that these architectures ignore for some or all layers."""
NAMED_INSTEAD = {
    "expert_count": ("expert_used_count", "expert_group_count"),
    "expert_used_count": ("expert_group_used_count",),
    "expert_group_count": ("expert_group_used_count",),
    "block_count": (
        " has 2 values for",
        "attention.recurrent_layers",
        "attention.sliding_window_pattern must be",
    ),
    "attention.head_count": ("attention.head_count_kv",),
    "attention.key_length": ("attention.value_length", "rope.dimension_count"),
    "attention.key_length_mla": ("rope.dimension_count",),
    "attention.key_length_swa": ("attention.value_length_swa", "rope.dimension_count_swa"),
    **{
        f"ssm.{name}": ("ssm.inner_size", "ssm.group_count")
        for name in ("state_size", "time_step_rank")
    },
}
"""Keys that a contradiction may be told by, next to the wrong one and the tensors."""


def _squared() -> tiny_gguf.TinyGGUF:
    """Return a model with an attention layer, and a layer that is a feed-forward alone in place of
    the recurrent one."""
    described = tiny_gguf.model("nemotron_h", n_layers=3)
    described.tensors = [
        tensor for tensor in described.tensors if not str(tensor.name).startswith("blk.1.")
    ]
    described.rename("blk.2.", "blk.1.")
    described.set("nemotron_h.block_count", N_LAYERS)
    described.set("nemotron_h.attention.head_count_kv", np.array([2, 0], "<u4"))
    described.set("nemotron_h.feed_forward_length", np.array([0, 96], "<u4"))
    return described


def _scaled() -> tiny_gguf.TinyGGUF:
    described = add_scales(tiny_gguf.model("qwen3moe", n_layers=N_LAYERS), are_applied=False)
    described.drop_tensors(".input_scale")  # not read
    return described


VARIANTS: dict[str, Callable[[], tiny_gguf.TinyGGUF]] = {
    "nemotron_h_moe with experts": lambda: tiny_gguf.model("nemotron_h_moe", n_layers=N_LAYERS),
    "gemma4 with experts": lambda: tiny_gguf.model("gemma4", n_layers=N_LAYERS, experts_from=1),
    "deepseek2 with ranks of queries": lambda: tiny_gguf.model(
        "deepseek2",
        n_layers=N_LAYERS,
        query_rank=64,
        keys={**test_deepseek2.YARN, **test_deepseek2.SIGMOID},
    ),
    "nemotron_h with a feed-forward": _squared,
    "qwen3moe with scales of matrices": _scaled,
}
"""Optional keys and tensors of an architecture's files beyond those of its tiny model."""
CASES = [*DISTINCT, *VARIANTS]
THOROUGH = {"llama", "qwen3moe", "gemma4", "deepseek2", "qwen35"}
"""Every wrong shape is tried of these, of others one for each tensor: all are told by the same
comparison."""
Line = tuple[str, int]


def _described(case: str) -> tiny_gguf.TinyGGUF:
    return VARIANTS[case]() if case in VARIANTS else tiny_gguf.model(case, n_layers=N_LAYERS)


def _name(case: str) -> str:
    return case.partition(" ")[0]


@contextmanager
def _sound(case: str, tmp_path: Path) -> Iterator[GGUFFile]:
    gguf = read_gguf(_described(case).write(tmp_path / "model.gguf"))
    try:
        assert _refused(gguf) == ""
        yield gguf
    finally:
        gguf.close()


def _refused(gguf: GGUFFile, **changed: Any) -> str:
    """Return the line that refuses a file, or nothing."""
    try:
        weights_of(replace(gguf, **changed))
    except EngineError as error:
        message = str(error)
        assert message.isprintable()
        assert len(message) < 300
        assert message.startswith("model.gguf: ")
        return message
    return ""


def _refusal(described: tiny_gguf.TinyGGUF, tmp_path: Path) -> str:
    with closing(read_gguf(described.write(tmp_path / "model.gguf"))) as gguf:
        return _refused(gguf)


def _keys_asked(gguf: GGUFFile, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[Line]]:
    """Return the names of the keys that reading the file looks up, without the architecture's
    prefix, and the lines that look them up."""
    readers: dict[str, set[Line]] = defaultdict(set)
    plain = Hyperparameters.raw

    def raw(self: Hyperparameters, name: str) -> Any:
        frame = sys._getframe(1)
        while frame.f_code.co_filename == plain.__code__.co_filename:
            frame = frame.f_back
        key = self.key(name).removeprefix(gguf.metadata["general.architecture"] + ".")
        readers[key].add((frame.f_code.co_filename, frame.f_lineno))
        return plain(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Hyperparameters, "raw", raw)
        read_config(gguf)
    return readers


def _bad_values(key: str, has_experts: bool) -> tuple[Any, ...]:
    if key in WORDS:
        return (7, 1.5, True, "yam", "\x1b[2J\n", ["linear"], np.ones(1, "<f4"))
    if key in FLAGS:
        return (7, 1.5, "x", np.ones(1, bool))
    if key == "classifier.output_labels":
        return (7, "x", True, [], np.ones(1, "<f4"))
    if key in COUNTS:
        may_be_nought = key in MAY_BE_NOUGHT or (key == "expert_count" and not has_experts)
        return (*NO_COUNTS, *(() if may_be_nought else (0, 1) if key == "expert_count" else (0,)))
    if key.endswith("epsilon"):
        return (*NO_NUMBERS, True, 0.0, -1e-5, 1.0, 1e-40)
    return (*NO_NUMBERS, True, *((-1.0, 1e-40) if key in POSITIVE else ()))


@pytest.mark.slow
def test_a_key_that_is_no_sound_value_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: dict[str, set[Line]] = defaultdict(set)
    for case in CASES:
        with _sound(case, tmp_path) as gguf:
            has_experts = any("_exps." in name for name in gguf.tensors)
            for entries in SCALED.values():
                metadata = gguf.metadata | {
                    f"{_name(case)}.{key}": value for key, value in entries.items()
                }
                scaled = replace(gguf, metadata=metadata)
                assert _refused(scaled) == ""
                for key, lines in _keys_asked(scaled, monkeypatch).items():
                    if lines <= checked[key]:
                        continue
                    checked[key] |= lines
                    name = key if key.startswith("xielu.") else f"{_name(case)}.{key}"
                    for value in _bad_values(key, has_experts):
                        message = _refused(scaled, metadata={**metadata, name: value})
                        assert name in message, f"{name} {value!r}: {message}"
    assert len(checked) > 60


@pytest.mark.parametrize("case", CASES)
def test_keys_that_contradict_other_keys_or_tensors_are_refused(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture = _name(case)
    with _sound(case, tmp_path) as gguf:
        readers = _keys_asked(gguf, monkeypatch)
        for key in readers.keys() & {
            key_name
            for key_name in CONTRADICTIONS
            if not {architecture, case} & UNREAD.get(key_name, set())
        }:
            name = f"{architecture}.{key}"
            for value in CONTRADICTIONS[key]:
                if np.array_equal(gguf.metadata.get(name, ()), value):
                    continue  # what this file says rightly
                message = _refused(gguf, metadata={**gguf.metadata, name: value})
                words = (name, "tensor ", *NAMED_INSTEAD.get(key, ()))
                assert any(word in message for word in words), f"{name} {value!r}: {message}"
        _assert_a_window_of_nought_is_refused_or_none(
            gguf, f"{architecture}.attention.sliding_window"
        )


def _assert_a_window_of_nought_is_refused_or_none(gguf: GGUFFile, name: str) -> None:
    without = replace(gguf, metadata={**gguf.metadata, name: 0})
    if message := _refused(without):
        assert name in message
    else:
        assert {attention.window for attention in read_config(without).attentions.values()} <= {
            None
        }


def _other_shapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return shapes longer and shorter by a block in each dimension, transposed, and with one more
    dimension."""
    shapes = [
        (*shape[:i], shape[i] + by, *shape[i + 1 :])
        for i in range(len(shape))
        for by in (-8, 8, 32)
    ]
    turned = [shape[::-1]] if shape[::-1] != shape else []
    return [*[dims for dims in shapes if min(dims) > 0], *turned, (2, *shape)]


def _bare(name: str) -> str:
    """Return a tensor's name without its layer."""
    return re.sub(r"^blk\.\d+", "", name)


@pytest.mark.slow
def test_missing_double_or_misshaped_tensors_are_refused_by_name(tmp_path: Path) -> None:
    """Check one tensor for all layers and architectures that read it by the same code."""
    checked: set[tuple[Any, ...]] = set()
    for case in sorted(CASES, key=lambda number: number not in THOROUGH):
        with _sound(case, tmp_path) as gguf:
            kinds = {}  # the last layer's, where they have several
            for name, spec in expected_tensors(read_config(gguf)).items():
                alternative = _bare(spec.instead_of)
                if name in gguf.tensors or spec.instead_of not in gguf.tensors:
                    kinds[
                        _bare(name),
                        len(spec.shape),
                        spec.required,
                        alternative,
                        name in gguf.tensors,
                    ] = name, spec
            for signature, (name, spec) in kinds.items():
                if signature in checked and case not in THOROUGH:
                    continue
                if name in gguf.tensors:
                    _assert_refused_by_name(case, gguf, spec, name)
                else:
                    some = next(iter(gguf.tensors.values()))
                    shape = _other_shapes(spec.shape)[0]
                    tensors = {**gguf.tensors, name: replace(some, name=name, shape=shape)}
                    assert f"tensor {name} has shape" in _refused(gguf, tensors=tensors), (
                        f"{name} {shape}"
                    )
            checked |= kinds.keys()
    assert len(checked) > 120


def _assert_refused_by_name(case: str, gguf: GGUFFile, spec: TensorSpec, name: str) -> None:
    info = gguf.tensors[name]
    shapes = _other_shapes(info.shape)
    for shape in shapes if case in THOROUGH else shapes[:1]:
        tensors = {**gguf.tensors, name: replace(info, shape=shape)}
        assert f"tensor {name} has shape" in _refused(gguf, tensors=tensors), f"{name} {shape}"
    without = {
        tensor_name: tensor for tensor_name, tensor in gguf.tensors.items() if tensor_name != name
    }
    message = _refused(gguf, tensors=without)
    alternative = spec.instead_of
    if spec.required:
        expected = [
            f"tensor {tensor_name} is missing" for tensor_name in (name, alternative or name)
        ]
        assert any(tensor_name in message for tensor_name in expected), f"{name}: {message}"
    else:
        assert not message, name
    if alternative and alternative not in gguf.tensors:
        doubled = {**gguf.tensors, alternative: replace(info, name=alternative)}
        assert "is there twice" in _refused(gguf, tensors=doubled), name
    if case not in THOROUGH:
        return
    block = name.replace("blk.1.", f"blk.{N_LAYERS}.")
    if block != name:
        beyond = {**gguf.tensors, block: replace(info, name=block)}
        assert f"tensor {block} is beyond" in _refused(gguf, tensors=beyond)
    stray = {**gguf.tensors, name + "x": replace(info, name=name + "x")}
    assert f"tensor {name}x is unknown" in _refused(gguf, tensors=stray)


@pytest.mark.slow
def test_vectors_of_another_type_or_with_nan_are_refused_by_name(tmp_path: Path) -> None:
    """Check one vector for all layers and architectures that read it by the same code."""
    checked: set[str] = set()
    for case in CASES:
        with _sound(case, tmp_path) as gguf:
            expected = expected_tensors(read_config(gguf))
            kinds = {_bare(name): name for name in gguf.tensors if len(expected[name].shape) == 1}
            vectors = [name for signature, name in kinds.items() if signature not in checked]
            checked |= kinds.keys()
            for name in vectors:
                tensors = {
                    **gguf.tensors,
                    name: replace(gguf.tensors[name], type_name="F16", ggml_type=1),
                }
                assert f"tensor {name} is F16" in _refused(gguf, tensors=tensors)
        described = _described(case)
        for name in vectors:
            tensor = described.tensor(name)
            sound = tensor.data
            values = np.ones(len(tensor.data) // 4, "<f4")
            values[-1] = NAN if len(name) % 2 else INF
            tensor.data = values.tobytes()
            assert f"tensor {name} holds NaN" in _refusal(described, tmp_path)
            tensor.data = sound
    assert len(checked) > 20


FACTORS = {
    **{name: ["rope_freqs.weight"] for name in ARCHITECTURES},
    "phi3": ["rope_factors_short.weight", "rope_factors_long.weight"],
    "phimoe": ["rope_factors_short.weight", "rope_factors_long.weight"],
    "minicpm3": ["rope_factors_short.weight", "rope_factors_long.weight"],
}
WITH_FACTORS = {
    "llama", "granite", "granitemoe", "mistral3", "exaone4", "minicpm", "arcee", "cohere2", "phi3",
    "phimoe",
    "apertus", "gemma4", "granitehybrid", "falcon-h1", "deepseek", "bailingmoe", "hunyuan-moe",
    "exaone",
    "pangu-embedded", "granite_swa", "minicpm3",
}  # fmt: skip
"""Architectures whose files may divide frequencies."""


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.parametrize("architecture", DISTINCT)
def test_rope_factors_must_be_one_above_zero_for_each_pair(
    architecture: str, tmp_path: Path
) -> None:
    n_pairs = 8
    for name in FACTORS[architecture]:
        wrong = (
            [0.0] * n_pairs,
            [1.0] * (n_pairs - 1),
            [1.0] * (n_pairs + 1),
            [-1.0] * n_pairs,
            [NAN] * n_pairs,
        )
        for values in wrong if architecture in THOROUGH else wrong[:1]:
            described = tiny_gguf.model(architecture, n_layers=N_LAYERS)
            described.drop_tensors(name)
            described.set(f"{architecture}.rope.dimension_count", 2 * n_pairs)
            described.add_vector(name, np.array(values))
            message = _refusal(described, tmp_path)
            assert f"tensor {name}" in message
            assert ("is unknown" in message) == (architecture not in WITH_FACTORS)
