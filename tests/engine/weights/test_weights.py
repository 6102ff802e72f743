"""Weights as views of the mapped file, and refusal of tensors of another architecture."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType, GGUFReader

from engine.errors import BrokenModelError, UnsupportedQuantError
from engine.gguf.read import read_gguf
from engine.quants import QUANTS
from tests.engine import tiny_gguf
from tests.engine.refusals import broken, check, edit, refusal, weights_of

NAN = float("nan")
INF = float("inf")
WITH_ODD_TENSORS = ("qwen3moe", "gpt-oss", "gemma4", "deepseek2", "qwen35", "falcon-h1")
"""Models with tensors that have three dimensions, belong to a head, are shared by layers, are
fused, or are convolutions."""
READ_BY_BOTH = [name for name in QUANTS if hasattr(GGMLQuantizationType, name)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "quant"),
    [*((name, "Q8_0") for name in WITH_ODD_TENSORS), *(("llama", name) for name in READ_BY_BOTH)],
)
def test_tensors_equal_those_of_another_reader(
    architecture: str, quant: str, tmp_path: Path
) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf", architecture, quant)
    weights = check(path)
    expected_tensors = GGUFReader(path).tensors
    assert len(weights.tensors) == len(expected_tensors)
    for expected_tensor in expected_tensors:
        tensor = weights[expected_tensor.name]
        expected = (
            expected_tensor.tensor_type.name,
            expected_tensor.shape[0],
            expected_tensor.n_bytes,
        )
        assert (tensor.quant, tensor.n_cols, tensor.size_bytes) == expected
        assert tensor.n_rows * tensor.row_bytes == tensor.size_bytes
        assert ctypes.string_at(tensor.address, tensor.size_bytes) == expected_tensor.data.tobytes()
        assert weights.rows(expected_tensor.name).shape == (tensor.n_rows, tensor.row_bytes)
    assert weights.total_bytes == sum(
        expected_tensor.n_bytes for expected_tensor in expected_tensors
    )


def test_weight_addresses_stay_valid_after_the_file_is_deleted(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf")
    gguf = read_gguf(path)
    weights = weights_of(gguf)
    norm = weights["output_norm.weight"]
    content = ctypes.string_at(norm.address, norm.size_bytes)
    gguf.close()
    path.unlink()
    assert ctypes.string_at(norm.address, norm.size_bytes) == content


def test_optional_tensors_may_be_missing(tmp_path: Path) -> None:
    bare = check(tiny_gguf.write(tmp_path / "bare.gguf", tied=True))
    full = check(tiny_gguf.write(tmp_path / "full.gguf", rope_factors=True, biases=True))
    for name, width in (("rope_freqs.weight", 8), ("blk.0.attn_k.bias", 32)):
        assert bare.get(name) is None
        tensor = full.get(name)
        assert tensor is not None
        assert (tensor.n_rows, tensor.n_cols) == (1, width)
    assert bare.get("output.weight") is None
    assert full.get("output.weight") is not None


def test_a_vector_written_with_two_dimensions_is_a_vector(tmp_path: Path) -> None:
    norm = check(broken(tmp_path, edit("output_norm.weight", dims=[64, 1])))["output_norm.weight"]
    assert (norm.n_rows, norm.n_cols) == (1, 64)


def test_an_unsupported_type_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    path = broken(tmp_path, edit("output.weight", ggml_type=24))
    message = refusal(path)
    assert "tensor output.weight is I8 (ggml type 24)" in message
    assert all(quant in message for quant in QUANTS)
    with pytest.raises(UnsupportedQuantError):
        check(path)


@pytest.mark.parametrize(
    ("quant", "file_type", "label"),
    [("Q4_K", 15, "Q4_K_M"), ("Q4_K", 14, "Q4_K_S"), ("Q4_K", None, "Q4_K"), ("Q4_K", 7, "Q4_K"),
     ("Q4_K", 999, "Q4_K"),
     ("Q8_0", 7, "Q8_0"), ("F32", 0, "F32"), ("F32", "Q4_K_M", "F32"), ("Q4_0", 1, "Q4_0")],
)  # fmt: skip
def test_the_size_label_is_used_if_the_tensors_agree(
    quant: str, file_type: int | str | None, label: str, tmp_path: Path
) -> None:
    def claim(tiny: tiny_gguf.TinyGGUF) -> None:
        if file_type is not None:
            tiny.set("general.file_type", file_type)

    assert check(broken(tmp_path, claim, quant=quant)).quantization_label() == label


def test_sizes_of_trained_models_are_the_sums_of_their_tensors(shared_data: Path) -> None:
    assert check(shared_data / "models" / "stories260K.gguf").total_bytes == 1_040_128
    assert check(shared_data / "models" / "babyllama105.gguf").quantization_label() == "F32"


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("name", ["output_norm.weight", "blk.1.ffn_norm.weight"])
def test_damaged_norms_are_refused(name: str, value: float, tmp_path: Path) -> None:
    path = broken(tmp_path, lambda t: t.fill(name, value))
    assert f"tensor {name} holds NaN" in refusal(path)
    with pytest.raises(BrokenModelError):
        check(path)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_rope_factors_that_cannot_be_divisors_are_refused(value: float, tmp_path: Path) -> None:
    name = "rope_freqs.weight"
    path = broken(tmp_path, lambda t: t.fill(name, value), rope_factors=True)
    assert f"tensor {name} holds a factor" in refusal(path)


def test_all_zero_weights_load(tmp_path: Path) -> None:
    check(broken(tmp_path, lambda t: [t.fill(str(tensor.name), 0.0) for tensor in t.tensors]))
