"""Safetensors files with wrong headers are refused in one line."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import EngineError
from engine.convert.safetensors import read_directory, read_safetensors
from tests.engine.convert.hub_directory import pack, write_json

TENSORS = {
    "a": ("F32", np.arange(6, dtype=np.float32).reshape(2, 3)),
    "b": ("F16", np.ones(4, np.float16)),
}


def test_tensors_are_read_in_place(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(pack(TENSORS))
    tensors = read_safetensors(tmp_path / "m.safetensors")
    for name, (dtype, values) in TENSORS.items():
        assert tensors[name].dtype == dtype
        assert np.array_equal(tensors[name].values(), values)


@pytest.mark.parametrize(
    ("lie", "line"),
    [
        ({"shape": [2, 4]}, "tensor a has 24 bytes, but its shape and type need 32"),
        ({"shape": [1 << 62, 1 << 62]}, "tensor a has no sound shape"),
        ({"shape": [-2, -3]}, "tensor a has no sound shape"),
        ({"shape": [2.0, 3]}, "tensor a has no sound shape"),
        ({"shape": 6}, "tensor a has no sound shape"),
        ({"shape": [1] * 9}, "tensor a has no sound shape"),
        ({"dtype": "F4"}, "tensor a has the unknown type F4"),
        ({"dtype": []}, "tensor a has the unknown type []"),
        ({"data_offsets": [8, 32]}, "tensor a has a hole before it"),
        ({"data_offsets": [0, 1 << 40], "shape": [1 << 38]}, "tensor b overlaps the one before it"),
        ({"data_offsets": [24, 0]}, "tensor a has -24 bytes"),
    ],
)
def test_wrong_headers_are_refused(lie: dict[str, Any], line: str, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(pack(TENSORS, a=lie))
    with pytest.raises(
        EngineError, match=rf"^m\.safetensors: {line.replace('[', '.').replace(']', '.')}"
    ):
        read_safetensors(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"1234567", "its header needs"),
        (struct.pack("<Q", 1 << 60), "its header needs 1152921504606846976 bytes"),
        (struct.pack("<Q", 2) + b"[]", "is not an object in JSON"),
        (struct.pack("<Q", 2) + b"{]", "is not JSON"),
        (struct.pack("<Q", 40000) + b'{"a":' * 8000, "is (not JSON|nested more than 64 deep)"),
        (struct.pack("<Q", 548) + b'{"a":' * 91 + b"{}" + b"}" * 91, "is nested more than 64 deep"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 123\n",
            "is a Git LFS pointer",
        ),
        (b"<!doctype html><title>Sign in</title>", "is a web page"),
        (pack(TENSORS)[:-1], "has 201 bytes, but its tensors end at 202"),
        (pack(TENSORS) + b"\0", "has 203 bytes, but its tensors end at 202"),
        (pack(TENSORS).replace(b'"b"', b'"a"'), "names something twice"),
    ],
)
def test_damaged_files_are_refused(content: bytes, line: str, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(EngineError, match=rf"^m\.safetensors: {line.replace('{', '.')}"):
        read_safetensors(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("weight_map", "line"),
    [
        ({}, "has no sound weight_map"),
        ({"a": "../../m.safetensors"}, "is no name of a safetensors file here"),
        ({"a": "m.bin"}, "is no name of a safetensors file here"),
        ({"a": "m.safetensors"}, "tensor b is not one that"),
        ({"a": "m.safetensors", "b": "m.safetensors", "c": "m.safetensors"}, "has no tensor c"),
        ({"a": "m.safetensors", "b": "n.safetensors"}, "tensor b is not one that"),
    ],
)
def test_a_wrong_index_is_refused(weight_map: dict[str, str], line: str, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(pack(TENSORS))
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(EngineError, match=line):
        read_directory(tmp_path)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(offset=st.integers(0, 201), byte=st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused(offset: int, byte: int, tmp_path: Path) -> None:
    content = bytearray(pack(TENSORS))
    content[offset] = byte
    (tmp_path / "m.safetensors").write_bytes(content)
    with suppress(EngineError):
        for tensor in read_safetensors(tmp_path / "m.safetensors").values():
            assert not tensor.is_float or tensor.values().nbytes == tensor.size_bytes
