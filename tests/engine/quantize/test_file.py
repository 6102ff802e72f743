"""Quantised files: the content of a rewritten model, and failures that leave no file behind."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Model
from engine.errors import BrokenModelError, FileUnwritableError, GGUFError, UnsupportedQuantError
from engine.gguf import write
from engine.gguf.contents import GGUFFile
from engine.gguf.read import read_gguf, typed_metadata
from engine.quantize import file
from engine.quantize.file import QuantizeResult, quantise_file
from engine.quantize.mixtures import TypedShape, mixture
from engine.quantize.rows import quantise_rows
from tests.engine import tiny_gguf

pytestmark = pytest.mark.slow


@pytest.fixture
def source(tmp_path: Path) -> Iterator[GGUFFile]:
    described = tiny_gguf.model("llama", "F32", dim=256, n_layers=2)
    with closing(read_gguf(described.write(tmp_path / "source.gguf"))) as gguf:
        yield gguf


def types_of(gguf: GGUFFile, mix: str, **options: Any) -> dict[str, str]:
    described = {
        name: TypedShape(info.shape, info.type_name) for name, info in gguf.tensors.items()
    }
    return mixture(gguf.metadata, described, mix, **options)


def quantise(gguf: GGUFFile, path: Path, mix: str, **options: Any) -> QuantizeResult:
    return quantise_file(
        gguf, path, types_of(gguf, mix), {"general.file_type": np.uint32(15)}, **options
    )


def values(gguf: GGUFFile, name: str) -> np.ndarray:
    info = gguf.tensors[name]
    return np.frombuffer(gguf.map, "<f4", info.size_bytes // 4, info.offset_bytes).reshape(
        -1, info.shape[-1]
    )


def raw(gguf: GGUFFile, name: str) -> bytes:
    info = gguf.tensors[name]
    return gguf.map[info.offset_bytes : info.offset_bytes + info.size_bytes]


def test_a_quantised_model_generates_almost_the_same_text(source: GGUFFile, tmp_path: Path) -> None:
    progress: list[int] = []
    written = quantise(
        source, tmp_path / "out.gguf", "Q4_K_M", n_threads=2, progress=progress.append
    )
    assert progress == sorted(progress)
    assert progress[-1] == sum(info.size_bytes for info in source.tensors.values())
    assert 0 < written.rmse < 0.02
    assert written.n_bytes < 0.25 * progress[-1]
    logits = []
    for name in ("source.gguf", "out.gguf"):
        model = Model.open(tmp_path / name, threads=1)
        with closing(model.session(64)) as session:
            logits.append(np.array(session.feed([1, 270, 271, 272, 273])))
        model.close()
    assert np.corrcoef(*logits)[0, 1] > 0.95


@pytest.mark.smoke
def test_types_and_metadata_of_a_quantised_file(source: GGUFFile, tmp_path: Path) -> None:
    expected = types_of(source, "Q4_K_M")
    quantise(source, tmp_path / "out.gguf", "Q4_K_M")
    with closing(read_gguf(tmp_path / "out.gguf")) as quantised:
        assert {name: info.type_name for name, info in quantised.tensors.items()} == expected
        assert {"F32", "Q4_K", "Q6_K"} <= set(expected.values())
        assert [quantised.tensors[name].shape for name in expected] == [
            source.tensors[name].shape for name in expected
        ]
        for name, type_name in expected.items():
            assert raw(quantised, name) == (
                raw(source, name)
                if type_name == "F32"
                else quantise_rows(values(source, name), type_name).tobytes()
            )
        source_keys = typed_metadata(source)
        quantised_keys = typed_metadata(quantised)
        assert quantised_keys.pop("general.quantization_version") == 2
        assert quantised_keys.pop("general.file_type") == 15
        assert list(quantised_keys) == [key for key in source_keys if key != "general.file_type"]
        assert all(np.array_equal(quantised_keys[key], source_keys[key]) for key in quantised_keys)


def test_parts_become_one_file(tmp_path: Path) -> None:
    with closing(read_gguf(tiny_gguf.write_parts(tmp_path, "m", 3)[0])) as split_model:
        quantise(split_model, tmp_path / "out.gguf", "Q8_0")
        with closing(read_gguf(tmp_path / "out.gguf")) as quantised:
            assert set(quantised.tensors) == set(split_model.tensors)
            assert not any(key.startswith("split.") for key in quantised.metadata)


def test_slices_and_threads_change_nothing(
    source: GGUFFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantise(source, tmp_path / "whole.gguf", "Q4_K_M")
    monkeypatch.setattr(file, "_SLICE", 3 * 256)
    quantise(source, tmp_path / "cut.gguf", "Q4_K_M", n_threads=3)
    assert (tmp_path / "whole.gguf").read_bytes() == (tmp_path / "cut.gguf").read_bytes()


def test_each_expert_has_its_own_importance(tmp_path: Path) -> None:
    described = tiny_gguf.model("qwen3moe", "F32", dim=256, n_layers=1)
    name = "blk.0.ffn_gate_exps.weight"
    with closing(read_gguf(described.write(tmp_path / "m.gguf"))) as gguf:
        n_experts, n_rows, n_cols = gguf.tensors[name].shape
        costs = np.random.default_rng(1).gamma(0.5, 1, (n_experts, n_cols)).astype(np.float32)
        quantise(gguf, tmp_path / "out.gguf", "Q4_K_M", importance={name: costs.ravel()})
        rows = values(gguf, name).reshape(n_experts, n_rows, n_cols)
        type_name = types_of(gguf, "Q4_K_M")[name]
        with closing(read_gguf(tmp_path / "out.gguf")) as quantised:
            alone = [
                quantise_rows(expert_rows, type_name, cost).tobytes()
                for expert_rows, cost in zip(rows, costs, strict=True)
            ]
            assert raw(quantised, name) == b"".join(alone)


def test_importance_of_another_model_is_refused(source: GGUFFile, tmp_path: Path) -> None:
    costs = {"blk.1.ffn_up.weight": np.ones(100, np.float32)}
    with pytest.raises(
        GGUFError, match=r"ffn_up\.weight has 256 columns, and importance of 100 \(make it again"
    ):
        quantise(source, tmp_path / "out.gguf", "Q4_K_M", importance=costs)
    assert not (tmp_path / "out.gguf").exists()


def test_nan_names_the_tensor_and_leaves_nothing(tmp_path: Path) -> None:
    described = tiny_gguf.model("llama", "F32", dim=256, n_layers=2)
    described.fill("blk.1.ffn_up.weight", np.nan)
    directory = tmp_path / "out"
    directory.mkdir()
    with (
        closing(read_gguf(described.write(tmp_path / "m.gguf"))) as gguf,
        pytest.raises(
            BrokenModelError, match=r"m\.gguf: tensor blk\.1\.ffn_up\.weight holds NaN, infinity or"
        ),
    ):
        quantise(gguf, directory / "out.gguf", "Q4_K_M")
    assert list(directory.iterdir()) == []


def test_a_full_disk_leaves_nothing(
    source: GGUFFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    with pytest.raises(FileUnwritableError, match="its disk has 0 MB left"):
        quantise(source, tmp_path / "out.gguf", "Q4_K_M")
    assert [path.name for path in tmp_path.iterdir()] == ["source.gguf"]


def test_unsupported_types_are_named(source: GGUFFile, tmp_path: Path) -> None:
    types = types_of(source, "Q4_K_M") | {"output_norm.weight": "IQ1_S"}
    with pytest.raises(
        UnsupportedQuantError, match=r"tensor output_norm\.weight cannot be made IQ1_S"
    ):
        quantise_file(source, tmp_path / "out.gguf", types, {})
