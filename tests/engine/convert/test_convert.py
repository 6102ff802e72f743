"""Directories are converted back to the GGUF files they were made from, or refused in one line
before anything is written."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import EngineError, GGUFFile, Model, Sampling, read_gguf
from engine.convert.convert import Conversion, model_directory, prepare
from engine.convert.safetensors import read_directory
from engine.loader import validate
from tests.engine.convert import hub_directory
from tests.engine.convert.hub_directory import CLASSES, change_json, numbers


def converted(directory: Path, mix: str = "F32", **options: Any) -> GGUFFile:
    out = directory.parent / "out.gguf"
    prepare(directory, mix).write(out, lambda done_bytes, name: None, **options)
    validate(out).gguf.close()
    return read_gguf(out)


def refusal(directory: Path, mix: str = "") -> str:
    """Convert a directory, and return the refusal in one line; no file may be left behind."""
    out = directory.parent / "out.gguf"
    with pytest.raises(EngineError) as caught:
        prepare(directory, mix).write(out, lambda done_bytes, name: None)
    assert str(caught.value).isprintable()
    assert not out.exists()
    assert not list(directory.parent.glob(".jalopy*"))
    return str(caught.value)


@pytest.mark.parametrize("vocabulary", ["spm", "bpe"])
@pytest.mark.parametrize("architecture", CLASSES)
def test_a_converted_directory_equals_the_original_file(
    architecture: str, vocabulary: str, tmp_path: Path
) -> None:
    is_tied = architecture.startswith("gemma")  # no separate output head
    original = hub_directory.write(
        tmp_path / "m", architecture, vocabulary=vocabulary, tied=is_tied
    )
    result = converted(tmp_path / "m")
    assert result.tensors.keys() == original.tensors.keys()
    for name in original.tensors:
        assert np.allclose(numbers(result, name), numbers(original, name), rtol=0, atol=1e-6), name
    for key, value in original.metadata.items():
        if key not in ("general.name", "general.file_type", "general.alignment"):
            assert np.array_equal(np.asarray(result.metadata[key]), np.asarray(value)), key
    assert result.metadata["general.name"] == "m"


@pytest.mark.parametrize(("dtype", "expected"), [("BF16", "BF16"), ("F16", "F16"), ("F32", "F16")])
def test_weights_keep_their_type_and_norms_are_float32(
    dtype: str, expected: str, tmp_path: Path
) -> None:
    hub_directory.write(tmp_path / "m", dtype=dtype)
    result = converted(tmp_path / "m", "")
    kinds = {info.type_name for info in result.tensors.values() if len(info.shape) > 1}
    assert kinds == {expected}
    assert {info.type_name for info in result.tensors.values() if len(info.shape) == 1} == {"F32"}


def test_a_mixture_equals_that_of_quantize(tmp_path: Path) -> None:
    hub_directory.write(tmp_path / "m", dim=256, hidden_dim=512)
    result = converted(tmp_path / "m", "Q4_K_M", n_threads=2)
    assert result.metadata["general.file_type"] == 15
    kinds = {name: info.type_name for name, info in result.tensors.items()}
    assert kinds["blk.0.attn_q.weight"] == "Q4_K"
    assert kinds["output.weight"] == "Q6_K"
    assert kinds["blk.0.attn_norm.weight"] == "F32"


QWEN35_GOLDEN = Path(__file__).parents[1] / "golden" / "qwen35_converted.json"
"""Metadata and hashes of tensors that llama.cpp's converter of 2026 made from the same directory:
``convert_hf_to_gguf.py --outtype f32``."""


def test_qwen35_is_converted_as_by_llama_cpp(tmp_path: Path) -> None:
    hub_directory.write_qwen35(tmp_path / "m")
    golden = json.loads(QWEN35_GOLDEN.read_text("utf-8"))
    result = converted(tmp_path / "m")
    assert result.tensors.keys() == golden["tensors"].keys() | golden["rates"].keys()
    for name, digest in golden["tensors"].items():
        assert hashlib.sha256(numbers(result, name).tobytes()).hexdigest() == digest, name
    for name, values in golden["rates"].items():
        assert np.allclose(numbers(result, name), values, rtol=1e-6, atol=0), name
    for key, value in golden["metadata"].items():
        assert np.array_equal(np.asarray(result.metadata[key]), np.asarray(value)), key
    assert prepare(tmp_path / "m").n_left_out == 1


@pytest.mark.slow
def test_a_converted_qwen35_guesses_by_its_block(tmp_path: Path) -> None:
    hub_directory.write_qwen35(tmp_path / "m")
    converted(tmp_path / "m", "F16")
    model = Model.open(tmp_path / "out.gguf", threads=1)
    session = model.session(n_ctx=64)
    session.prefill([5, 9, 20, 33])
    assert session.guess_limits.can_draft
    assert len(list(session.generate(Sampling.greedy(), 8, guess=True))) == 8
    model.close()


def test_a_qwen35_without_its_block_is_converted(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    hub_directory.write_qwen35(directory)
    hub_directory.drop_tensors(directory, "mtp.")
    result = converted(directory)
    assert result.metadata["qwen35.block_count"] == 4
    assert "qwen35.nextn_predict_layers" not in result.metadata
    assert not any("nextn" in name for name in result.tensors)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"linear_num_value_heads": 4}, "linear_attn.in_proj_qkv.weight has 320 rows or columns"),
        ({"linear_num_key_heads": 4}, "config.json: 6 value heads do not divide among 4 key heads"),
        ({"linear_key_head_dim": 16}, "config.json: linear_key_head_dim is not linear_value"),
        ({"linear_conv_kernel_dim": 0}, "config.json: linear_conv_kernel_dim is 0: must be a whole"),
        ({"layer_types": ["linear_attention"]}, "config.json: layer_types is a list: must be a"),
        ({"layer_types": ["conv"] * 4}, "config.json: layer_types has kinds besides"),
        ({"layer_types": [["x"]] * 4}, "config.json: layer_types has kinds besides"),
        ({"attn_output_gate": False}, "config.json: attn_output_gate is False, which a GGUF"),
        ({"rope_parameters": {"mrope_section": [1, -1, 2]}}, "config.json: mrope_section is a list"),
        ({"num_hidden_layers": 3}, "config.json: layer_types is a list: must be a list of 3 kinds"),
    ],
)  # fmt: skip
def test_a_damaged_qwen35_is_refused(changes: dict[str, Any], line: str, tmp_path: Path) -> None:
    hub_directory.write_qwen35(tmp_path / "m")
    text_config = hub_directory.QWEN35_CONFIG["text_config"] | changes
    change_json(tmp_path / "m/config.json", text_config=text_config)
    assert line in refusal(tmp_path / "m")


def test_shards_are_one_model(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    original = hub_directory.write(directory)
    split_in_two(directory)
    assert converted(directory).tensors.keys() == original.tensors.keys()
    (directory / "model-2.safetensors").unlink()
    (tmp_path / "out.gguf").unlink()
    assert refusal(directory).startswith("model-2.safetensors: no such file")


def split_in_two(directory: Path) -> None:
    content = (directory / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__")
    places = {}
    for number, names in enumerate((list(header)[:5], list(header)[5:]), 1):
        tensors = {}
        for name in names:
            first, end = header[name]["data_offsets"]
            raw = np.frombuffer(content[8 + size + first : 8 + size + end], np.float32)
            tensors[name] = "F32", raw.reshape(header[name]["shape"])
            places[name] = f"model-{number}.safetensors"
        (directory / f"model-{number}.safetensors").write_bytes(hub_directory.pack(tensors))
    (directory / "model.safetensors").unlink()
    hub_directory.write_json(directory / "model.safetensors.index.json", {"weight_map": places})


def test_a_tied_head_is_left_out(tmp_path: Path) -> None:
    hub_directory.write(tmp_path / "m")
    change_json(tmp_path / "m/config.json", tie_word_embeddings=True)
    assert "output.weight" not in converted(tmp_path / "m").tensors


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"architectures": ["NeverHeardOf"]},
         "config.json: architecture NeverHeardOf cannot be converted; can be: "),
        ({"architectures": None}, "config.json: architecture missing cannot be converted"),
        ({"hidden_size": None}, "config.json: hidden_size is missing"),
        ({"hidden_size": "64"}, "config.json: hidden_size is 64: must be a whole number"),
        ({"hidden_size": 0}, "config.json: hidden_size is 0"),
        ({"hidden_size": 32}, "m: tensor "),
        ({"num_hidden_layers": 1}, "model.safetensors: tensor model.layers.1."),
        ({"num_hidden_layers": 3}, "m: tensor blk.2."),
        ({"num_attention_heads": 3}, "config.json: 3 heads do not fit a projection of 64 rows"),
        ({"rms_norm_eps": 1e999}, "config.json: rms_norm_eps is inf: must be a number"),
        ({"hidden_act": "gelu"}, "config.json: hidden_act is gelu: llama means silu"),
        ({"rope_scaling": {"rope_type": "odd"}},
         "config.json: rope_type is 'odd'; supported: default, linear"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 0}},
         "config.json: factor is 0: must be a number from 1"),
        ({"num_hidden_layers": 10**9},
         "config.json: num_hidden_layers is 1000000000: must be a whole number"),
        ({"rope_scaling": 5}, "config.json: rope_scaling is 5: must be an object"),
        ({"text_config": []}, "config.json: text_config is a list: must be an object"),
        ({"architectures": [5]}, "config.json: architectures is a list: must be a list of names"),
        ({"quantization": {"bits": 4}}, "config.json: the weights are quantised (quantization)"),
        ({"quantization_config": {"quant_method": "awq"}},
         "config.json: the weights are quantised (awq)"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    hub_directory.write(tmp_path / "m")
    change_json(tmp_path / "m/config.json", **changes)
    assert refusal(tmp_path / "m").startswith(line)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("config.json", "m: has no config.json (name a directory"),
        ("model.safetensors", "m: has no safetensors file"),
        ("tokenizer.model", "m: has neither tokenizer.json nor tokenizer.model"),
    ],
)
def test_missing_files_and_settings_are_named(name: str, line: str, tmp_path: Path) -> None:
    hub_directory.write(tmp_path / "m")
    (tmp_path / "m" / name).unlink()
    assert refusal(tmp_path / "m").startswith(line)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod."])
def test_names_of_wrapped_models_are_read(prefix: str, tmp_path: Path) -> None:
    original = hub_directory.write(tmp_path / "m")
    path = tmp_path / "m/model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    text = json.dumps(
        {prefix + name: entry for name, entry in header.items() if name != "__metadata__"}
    ).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])
    assert converted(tmp_path / "m").tensors.keys() == original.tensors.keys()


def test_an_adapter_is_named(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    hub_directory.write_json(
        tmp_path / "m/adapter_config.json", {"base_model_name_or_path": "org/base", "r": 8}
    )
    assert refusal(tmp_path / "m").startswith(
        "m: is an adapter (LoRA) of org/base, not a model (merge it"
    )
    hub_directory.write_json(tmp_path / "m/adapter_config.json", {"base_model_name_or_path": 5})
    assert refusal(tmp_path / "m").startswith("m: is an adapter (LoRA), not a model (merge it")


def test_the_snapshot_in_a_hub_cache_is_found(tmp_path: Path) -> None:
    root = tmp_path / "models--org--m"
    (root / "snapshots" / "abc").mkdir(parents=True)
    assert model_directory(root) == root / "snapshots" / "abc"
    (root / "snapshots" / "def").mkdir()
    with pytest.raises(
        EngineError, match=r"^models--org--m: has 2 snapshots \(name the one that is meant"
    ):
        model_directory(root)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("def\n")
    assert model_directory(root) == root / "snapshots" / "def"
    (root / "refs" / "main").write_text("../../..")
    with pytest.raises(EngineError, match="has 2 snapshots"):
        model_directory(root)
    hub_directory.write(tmp_path / "m")
    assert model_directory(tmp_path / "m") == tmp_path / "m"


def test_a_vocabulary_that_no_header_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_directory.write(tmp_path / "m", vocabulary="bpe")
    monkeypatch.setattr("engine.convert.convert.MAX_HEADER_BYTES", (1 << 20) + 1000)
    assert refusal(tmp_path / "m").startswith("m: its vocabulary is larger than 1 MiB")


def test_a_refused_directory_has_its_files_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_directory.write(tmp_path / "m")
    change_json(tmp_path / "m/config.json", num_hidden_layers=1)
    sources = read_directory(tmp_path / "m")
    monkeypatch.setattr("engine.convert.convert.read_directory", lambda directory: sources)
    file = next(iter(sources.values())).file
    assert not file.changed()
    refusal(tmp_path / "m")
    assert file.changed()  # true for every closed file


def test_pickles_are_refused(tmp_path: Path) -> None:
    hub_directory.write(tmp_path / "m")
    (tmp_path / "m/model.safetensors").rename(tmp_path / "m/pytorch_model.bin")
    assert "pytorch_model.bin may run any program when it is read" in refusal(tmp_path / "m")


@pytest.mark.parametrize(
    ("value", "mix"), [(np.nan, "BF16"), (np.inf, "F32"), (1e30, "F16"), (np.nan, "Q4_0")]
)
def test_weights_with_nan_or_infinity_are_refused(value: float, mix: str, tmp_path: Path) -> None:
    hub_directory.write(tmp_path / "m")
    path = tmp_path / "m/model.safetensors"
    content = bytearray(path.read_bytes())
    content[-4:] = np.float32(value).tobytes()
    path.write_bytes(content)
    line = refusal(tmp_path / "m", mix)
    assert line.startswith("model.safetensors: ")
    assert "holds NaN, infinity or a value above" in line


def test_llama_3_1_divides_frequencies(tmp_path: Path) -> None:
    hub_directory.write(tmp_path / "m")
    scaling = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
    change_json(tmp_path / "m/config.json", rope_scaling=scaling)
    factors = numbers(converted(tmp_path / "m"), "rope_freqs.weight")
    assert factors[0] == 1.0  # high frequency
    assert factors[-1] == 8.0  # low frequency
    assert (np.diff(factors) >= 0).all()


def test_a_killed_conversion_leaves_no_file(tmp_path: Path) -> None:
    hub_directory.write(tmp_path / "m")
    code = (
        "import os, signal, sys; from pathlib import Path; from engine.convert.convert import "
        "prepare;"
        "prepare(Path(sys.argv[1])).write(Path(sys.argv[2]), lambda *done: "
        "os.kill(os.getpid(), signal.SIGKILL))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "m", tmp_path / "out.gguf"], check=False
    )
    assert done.returncode == -9
    assert not (tmp_path / "out.gguf").exists()
    assert [path.name for path in tmp_path.glob("*.gguf")] == ["m.gguf"]


def test_tensors_pass_a_few_megabytes_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.convert.tensors._CHUNK_ELEMENTS", 1000)
    original = hub_directory.write(tmp_path / "m", "llama")
    conversion: Conversion = prepare(tmp_path / "m", "F32")
    tensor = next(
        candidate for candidate, _ in conversion.tensors if candidate.name == "blk.0.attn_q.weight"
    )
    chunks = [rows for piece in tensor.pieces for rows in piece.rows()]
    assert max(rows.size for rows in chunks) <= 1000
    assert np.array_equal(np.concatenate(chunks), numbers(original, tensor.name))
