"""The GGUF reader on sound files: values, tensor table, sizes, and detection of changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, LlamaFileType

from engine.errors import GGUFError, printable
from engine.gguf.ggml_types import MIXES
from engine.gguf.read import GGML_TYPES, read_gguf
from engine.gguf.strings import StringArray
from engine.loader import validate
from tests.engine import tiny_gguf
from tests.engine.tiny_gguf import F64, I8, I16, I32, I64, U8, U16, U64


def test_type_sizes_equal_those_of_the_gguf_package() -> None:
    package_types = {
        int(tensor_type): (tensor_type.name, *GGML_QUANT_SIZES[tensor_type])
        for tensor_type in GGMLQuantizationType
    }
    engine_types = {number: tuple(layout[:3]) for number, layout in GGML_TYPES.items()}
    assert {
        number: engine_types[number] for number in package_types.keys() & engine_types.keys()
    } == {number: package_types[number] for number in package_types.keys() & engine_types.keys()}
    assert package_types.keys() & engine_types.keys() >= {0, 1, 2, 3, *range(6, 31)}


def test_names_of_mixes_equal_those_of_the_gguf_package() -> None:
    package_mixes = {
        int(file_type): file_type.name.removeprefix("MOSTLY_").removeprefix("ALL_")
        for file_type in LlamaFileType
    }
    assert [
        mix for number, (_, mix) in MIXES.items() if package_mixes.get(number, mix) != mix
    ] == []


@pytest.mark.parametrize(
    ("value", "value_type"),
    [(200, U8), (-100, I8), (60000, U16), (-30000, I16), (-5, I32), (2**63, U64), (-(2**60), I64),
     (0.1, F64),
     (True, None), (False, None), (7, None), (0.5, None), ("Grüße, 世界", None), ("", None)],
)  # fmt: skip
def test_scalars_are_read_as_python_values(
    value: object, value_type: int | None, tmp_path: Path
) -> None:
    tiny = tiny_gguf.TinyGGUF()
    tiny.set("x", value, value_type)
    stored = read_gguf(tiny.write(tmp_path / "model.gguf")).metadata["x"]
    assert stored == value
    assert type(stored) is type(value)


def test_a_string_that_is_not_utf8_is_read_as_bytes(tmp_path: Path) -> None:
    tiny = tiny_gguf.TinyGGUF()
    tiny.set("general.name", b"caf\xe9")
    name = read_gguf(tiny.write(tmp_path / "model.gguf")).metadata["general.name"]
    assert name.encode("utf-8", "surrogateescape") == b"caf\xe9"


@pytest.mark.parametrize(
    "dtype", ["<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8", "|b1"]
)
@pytest.mark.parametrize("values", [[1, 0, 1], []], ids=["some", "none"])
def test_arrays_of_numbers_are_read_as_read_only_arrays(
    dtype: str, values: list[int], tmp_path: Path
) -> None:
    tiny = tiny_gguf.TinyGGUF()
    tiny.set("x", np.array(values, dtype))
    stored = read_gguf(tiny.write(tmp_path / "model.gguf")).metadata["x"]
    assert stored.dtype == np.dtype(dtype)
    assert stored.tolist() == values


def test_arrays_of_strings_are_read_as_bytes(tmp_path: Path) -> None:
    tiny = tiny_gguf.TinyGGUF()
    tiny.set("x", ["a", "", "世", b"\xff\x00"])
    stored = read_gguf(tiny.write(tmp_path / "model.gguf")).metadata["x"]
    assert list(stored) == [b"a", b"", "世".encode(), b"\xff\x00"]


def test_version_2_is_read_like_version_3(tmp_path: Path) -> None:
    tiny = tiny_gguf.model()
    tiny.version = 2
    gguf = read_gguf(tiny.write(tmp_path / "model.gguf"))
    assert gguf.version == 2
    assert len(gguf.tensors) == len(tiny.tensors)


def test_the_tensor_table_agrees_with_another_reader(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf", quant="Q5_1")
    gguf = read_gguf(path)
    for expected in GGUFReader(path).tensors:
        tensor = gguf.tensors[expected.name]
        assert tensor.shape == tuple(int(dim) for dim in reversed(expected.shape))
        assert (tensor.type_name, tensor.ggml_type) == (
            expected.tensor_type.name,
            int(expected.tensor_type),
        )
        assert (tensor.offset_bytes, tensor.size_bytes) == (expected.data_offset, expected.n_bytes)


def test_bytes_after_the_last_tensor_are_harmless(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_gguf.build() + bytes(1000))
    assert read_gguf(path).tensors


def test_vocabularies_without_tensors_are_read_but_are_no_models(shared_data: Path) -> None:
    paths = sorted((shared_data / "vocab").glob("*.gguf"))
    assert paths
    for path in paths:
        gguf = read_gguf(path)
        assert not gguf.tensors
        assert len(gguf.metadata["tokenizer.ggml.tokens"]) > 30000
        with pytest.raises(GGUFError, match="has no tensors"):
            validate(path)


@pytest.mark.slow
def test_real_metadata_equals_that_of_another_reader(shared_data: Path) -> None:
    path = shared_data / "vocab" / "ggml-vocab-llama-spm.gguf"
    metadata = read_gguf(path).metadata
    for key, field in GGUFReader(path).fields.items():
        if key.startswith("GGUF."):
            continue
        if isinstance(metadata[key], StringArray):
            strings = [bytes(field.parts[index]) for index in field.data]
            assert list(metadata[key]) == strings
        elif isinstance(metadata[key], np.ndarray):
            assert metadata[key].tolist() == field.contents()
        else:
            assert metadata[key] == field.contents()


def test_a_file_that_grows_or_is_rewritten_is_detected(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf")
    gguf = read_gguf(path)
    assert not gguf.changed()
    with path.open("ab") as file:
        file.write(b"more")
    assert gguf.changed()


def test_a_rewrite_of_equal_size_is_detected_by_its_time(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf")
    gguf = read_gguf(path)
    stamp = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(stamp, stamp))
    assert gguf.changed()


def test_replacing_or_deleting_the_file_is_harmless(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf")
    gguf = read_gguf(path)
    content = gguf.map[:]
    tiny_gguf.write(tmp_path / "other.gguf", seed=1).replace(path)
    assert not gguf.changed()
    path.unlink()
    assert not gguf.changed()
    assert gguf.map[:] == content


def test_closing_twice_is_harmless_and_closed_counts_as_changed(tmp_path: Path) -> None:
    gguf = read_gguf(tiny_gguf.write(tmp_path / "model.gguf"))
    gguf.close()
    gguf.close()
    assert gguf.changed()


@pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="needs Linux's list of open descriptors"
)
def test_a_refused_file_is_not_left_open(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_gguf.build()[:-100])
    n_open = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(GGUFError):
            read_gguf(path)
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_checking_a_model_imports_no_numba(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf")
    program = (
        "import sys, engine.loader, engine.config, engine.weights.weights, engine.gguf.read\n"
        "gguf = engine.gguf.read.read_gguf(sys.argv[1])\n"
        "config = engine.models.read_config(gguf)\n"
        "engine.weights.weights.Weights.check(gguf, config, "
        "engine.models.expected_tensors(config))\n"
        "sys.exit('numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("世界", "世界"),
        ("a\x1b[31mb\n\x9b\x00", r"a\x1b[31mb\x0a\x9b\x00"),
        (b"\xff\xfe", r"\xff\xfe"),
        ("\u202e\u200b\U000e0041", r"\u202e\u200b\U000e0041"),
        ("x" * 100, "x" * 57 + "..."),
        ("\x00" * 100, r"\x00" * 14 + "..."),
    ],
)
def test_foreign_text_is_shown_clean_and_short(text: str | bytes, clean: str) -> None:
    shown_text = printable(text)
    assert shown_text.isprintable()
    assert len(shown_text) <= 60
    assert shown_text == clean
