"""Header cache: headers are read once, and again after a change of the file or the engine, or if
the cache is damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app.models.library import header as header_module
from app.models.library.header import HeaderCache, ModelHeader, read_header
from app.models.library.model_files import Place, StoredModel, find_files
from engine import MemoryNeeds
from tests.engine import tiny_gguf


@pytest.fixture
def file(tmp_path: Path) -> StoredModel:
    (tmp_path / "models").mkdir()
    tiny_gguf.write(tmp_path / "models" / "m.gguf", quant="Q8_0")
    return find_files([Place("here", tmp_path / "models")])[0]


def read_again(path: Path, file: StoredModel) -> tuple[ModelHeader, int]:
    """Ask a new cache over the same cache file.

    Returns the header and the number of headers read for it.
    """
    cache = HeaderCache(path)
    header = cache.header(file)
    cache.save()
    return header, cache.n_read


def test_a_header_has_what_the_list_needs(file: StoredModel) -> None:
    header = read_header(file.path)
    assert (header.architecture, header.quantization, header.context_length) == (
        "llama",
        "Q8_0",
        128,
    )
    assert header.name == "tiny llama Q8_0"
    assert header.reason == ""
    assert header.needs is not None
    assert header.parameters == sum(
        tensor.dims[0] * (tensor.dims[1] if len(tensor.dims) > 1 else 1)
        for tensor in tiny_gguf.model(quant="Q8_0").tensors
    )
    for kv_type, item_bytes in (("f16", 2), ("f32", 4)):
        assert header.memory[kv_type] == MemoryNeeds(2 * 2 * 2 * 16 * item_bytes)


def test_nothing_is_read_the_second_time(file: StoredModel, tmp_path: Path) -> None:
    first, n_first = read_again(tmp_path / "c" / "models.json", file)
    second, n_second = read_again(tmp_path / "c" / "models.json", file)
    assert (n_first, n_second) == (1, 0)
    assert first == second


def test_a_changed_file_is_read_again(file: StoredModel, tmp_path: Path) -> None:
    read_again(tmp_path / "c" / "models.json", file)
    tiny_gguf.write(file.path, "qwen2")
    os.utime(file.path, ns=(1, 1))
    changed = find_files([Place("here", file.path.parent)])[0]
    header, n_read = read_again(tmp_path / "c" / "models.json", changed)
    assert (header.architecture, n_read) == ("qwen2", 1)


def test_a_newer_engine_reads_all_headers_again(
    file: StoredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_again(tmp_path / "c" / "models.json", file)
    monkeypatch.setattr(header_module, "supported_names", lambda: "llama,mamba")
    assert read_again(tmp_path / "c" / "models.json", file)[1] == 1


DAMAGE = {
    b'"llama"': b"7",
    b'"context_length": 128': b'"context_length": -1',
    b'"n_layers": 2': b'"n_layers": 1e400',
    b'"rings": []': b'"rings": [[1, -1]]',
    b'"fixed_bytes": 0': b'"fixed_bytes": null',
    b'"type_bytes": {': b'"type_bytes": {"x": null, ',
    b'"version": 2': b'"version": 1',
}


def test_a_damaged_cache_is_ignored(file: StoredModel, tmp_path: Path) -> None:
    path = tmp_path / "c" / "models.json"
    expected, _ = read_again(path, file)
    content = path.read_bytes()
    for sound, damaged in DAMAGE.items():
        assert sound in content
        path.write_bytes(content.replace(sound, damaged))
        assert read_again(path, file) == (expected, 1)


def test_an_unsupported_model_keeps_its_reason_and_header(tmp_path: Path) -> None:
    tiny = tiny_gguf.model()
    tiny.set("general.architecture", "mamba")
    tiny.set("mamba.context_length", 4096)
    header = read_header(tiny.write(tmp_path / "m.gguf"))
    assert header.reason.startswith("general.architecture 'mamba' is not supported")
    assert (header.architecture, header.context_length, header.needs) == ("mamba", 4096, None)
    assert header.parameters > 0


def test_a_foreign_file_has_a_reason_and_is_read_again(tmp_path: Path) -> None:
    for content, reason in (
        (b"", "is empty"),
        (b"<html>captive portal", "is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 16, "n_tensors is"),
    ):
        (tmp_path / "x.gguf").write_bytes(content)
        file = find_files([Place("here", tmp_path)])[0]
        for _ in range(2):
            header, n_read = read_again(tmp_path / "c" / "models.json", file)
            assert header.reason.startswith(reason)
            assert n_read == 1


def test_undecodable_file_names_can_be_cached(file: StoredModel, tmp_path: Path) -> None:
    tiny = tiny_gguf.model()
    tiny.set("general.name", b"bad \xff\x1b[2J name")
    tiny.write(file.path)
    changed = find_files([Place("here", file.path.parent)])[0]
    first, _ = read_again(tmp_path / "c" / "models.json", changed)
    second, n_read = read_again(tmp_path / "c" / "models.json", changed)
    assert n_read == 0
    assert first.name == second.name == "bad \udcff\x1b[2J name"
    json.loads((tmp_path / "c" / "models.json").read_text("ascii"))


def test_an_unwritable_cache_is_harmless(file: StoredModel, tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file")
    assert read_again(tmp_path / "blocked" / "models.json", file)[1] == 1
