"""Search for model files: parts are one model, links count once, and the stores of other programs
are searched."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from app.models.library import model_files as places_module
from app.models.library.model_files import Place, StoredModel, find_files
from tests.app.models.library.stores import hugging_face_model, ollama_model
from tests.engine import tiny_gguf


def found_in(directory: Path, **options: int) -> list[StoredModel]:
    return find_files([Place("here", directory, **options)])


def titles(directory: Path, **options: int) -> list[str]:
    return [file.title for file in found_in(directory, **options)]


def touch(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_only_gguf_files_are_found_at_every_level(tmp_path: Path) -> None:
    for name in (
        "b.gguf",
        "sub/deep/A.GGUF",
        "model.gguf.part",
        "notes.txt",
        "sub/model.safetensors",
        ".hidden/c.gguf",
    ):
        touch(tmp_path / name)
    (tmp_path / "directory.gguf").mkdir()
    assert titles(tmp_path) == ["A", "b"]
    assert titles(tmp_path, depth=0) == ["b"]


def test_a_directory_named_like_a_model_is_searched(tmp_path: Path) -> None:
    touch(tmp_path / "someone" / "Tiny.gguf" / "tiny-q8_0.gguf")
    assert titles(tmp_path) == ["tiny-q8_0"]


def test_the_parts_of_a_model_are_one_row_with_the_total_size(tmp_path: Path) -> None:
    paths = tiny_gguf.write_parts(tmp_path, "big", 3)
    touch(tmp_path / "other" / "big-00001-of-00003.gguf")
    together, alone = sorted(found_in(tmp_path), key=lambda file: -file.n_parts)
    assert (together.title, together.n_parts, together.path) == ("big", 3, paths[0])
    assert together.size_bytes == sum(path.stat().st_size for path in paths)
    assert (alone.title, alone.n_parts) == ("big", 1)


def test_link_loops_end_and_a_file_linked_twice_is_listed_once(tmp_path: Path) -> None:
    touch(tmp_path / "a" / "m.gguf")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    (tmp_path / "same.gguf").symlink_to(tmp_path / "a" / "m.gguf")
    os.link(tmp_path / "a" / "m.gguf", tmp_path / "hard.gguf")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "nothing")
    assert len(found_in(tmp_path)) == 1


def test_a_link_to_itself_does_not_hide_other_models(tmp_path: Path) -> None:
    for n in range(40):
        (tmp_path / f"loop{n}").symlink_to(tmp_path / f"loop{n}")
        touch(tmp_path / f"{n}.gguf")
    assert len(found_in(tmp_path)) == 40


def test_a_pipe_is_ignored(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert titles(tmp_path) == []


def test_the_search_of_a_huge_directory_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places_module, "MOST_ENTRIES", 10)
    for n in range(30):
        touch(tmp_path / f"{n}.gguf")
    assert 0 < len(titles(tmp_path)) <= 10


def test_ollama_models_have_their_ollama_names(tmp_path: Path) -> None:
    ollama_model(tmp_path, "llama3.2", "3b", b"one")
    blob = ollama_model(tmp_path, "tiny", "latest", b"two", host="registry.ollama.ai/someone")
    ollama_model(tmp_path, "m", "q4", b"three", host="hf.co/someone")
    models = find_files([Place("Ollama", tmp_path, is_ollama=True)])
    assert [file.title for file in models] == [
        "hf.co/someone/m:q4",
        "llama3.2:3b",
        "someone/tiny:latest",
    ]
    assert models[2].path == blob
    assert models[2].size_bytes == 3


def manifest_with(digest: object) -> bytes:
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": digest}]
    return json.dumps({"layers": layers}).encode()


MANIFESTS = (
    b"", b"{", b"[]", b"{}", b'{"layers": "x"}', b'{"layers": ["x"]}', b"[" * 100_000,
    manifest_with(3), manifest_with("sha256:../../../../etc/passwd"),
    manifest_with("sha256:" + "0" * 65),
)  # fmt: skip


def test_a_damaged_manifest_names_no_file(tmp_path: Path) -> None:
    for n, manifest in enumerate(MANIFESTS):
        touch(tmp_path / f"manifests/registry.ollama.ai/library/bad/{n}", manifest)
    ollama_model(tmp_path, "good", "latest", b"x")
    assert [file.title for file in find_files([Place("Ollama", tmp_path, is_ollama=True)])] == [
        "good:latest"
    ]


def test_a_missing_blob_is_not_listed(tmp_path: Path) -> None:
    ollama_model(tmp_path, "gone", "latest", b"x").unlink()
    assert find_files([Place("Ollama", tmp_path, is_ollama=True)]) == []


def test_unreadable_blobs_do_not_hide_other_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ollama_model(tmp_path / "theirs", "m", "latest", b"x")
    touch(tmp_path / "mine" / "good.gguf")
    stat = os.stat

    def guarded(path: str | Path, **options: bool) -> os.stat_result:
        if "/blobs/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", guarded)
    models = find_files(
        [Place("Ollama", tmp_path / "theirs", is_ollama=True), Place("mine", tmp_path / "mine")]
    )
    assert [file.title for file in models] == ["good"]


def test_a_hugging_face_file_with_revisions_is_listed_once(tmp_path: Path) -> None:
    hugging_face_model(tmp_path, "someone/Tiny-GGUF", "tiny-q8_0.gguf", revisions=3)
    assert titles(tmp_path) == ["tiny-q8_0"]


def test_missing_directories_are_skipped(tmp_path: Path) -> None:
    assert (
        find_files(
            [Place("none", tmp_path / "none"), Place("Ollama", tmp_path / "none", is_ollama=True)]
        )
        == []
    )
    assert find_files([Place("a file", touch(tmp_path / "file"))]) == []
