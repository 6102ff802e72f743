"""Directories of models: from the settings and the environment variables of each program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.models.library.model_files import download_directory, places


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set a home directory and remove all variables that name directories."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (
        "OLLAMA_MODELS",
        "LMSTUDIO_HOME",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "LLAMA_CACHE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def paths_of(label: str) -> list[Path]:
    return [store.path for store in places() if store.label == label]


def test_directories_in_the_settings_come_first(tmp_path: Path) -> None:
    stores = places((str(tmp_path / "Models"), "/data/gguf", "relative", "bad\0"))
    assert [(store.label, store.path) for store in stores[:2]] == [
        ("~/Models", tmp_path / "Models"),
        ("/data/gguf", Path("/data/gguf")),
    ]
    assert all(store.path.is_absolute() for store in stores)


def test_ollama_is_found_at_home_and_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert paths_of("Ollama")[0] == tmp_path / ".ollama" / "models"
    monkeypatch.setenv("OLLAMA_MODELS", "/big/ollama")
    assert paths_of("Ollama")[:2] == [Path("/big/ollama"), tmp_path / ".ollama" / "models"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, "{home}/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HF_HOME": "/hf", "XDG_CACHE_HOME": "/c"}, "/hf/hub"),
        ({"HF_HUB_CACHE": "/hub", "HF_HOME": "/hf"}, "/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
    ],
)
def test_hugging_face_variables_are_honoured(
    environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert paths_of("Hugging Face") == [Path(expected.format(home=tmp_path))]


def test_lm_studio_is_found_by_its_pointer_and_its_settings(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".lmstudio-home-pointer").write_text(f"{elsewhere}\n")
    (elsewhere / "settings.json").write_text(json.dumps({"downloadsFolder": "/big/models"}))
    directories = paths_of("LM Studio")
    assert directories[:2] == [Path("/big/models"), elsewhere / "models"]
    assert tmp_path / ".lmstudio" / "models" in directories


def test_unsound_lm_studio_settings_are_ignored(tmp_path: Path) -> None:
    (tmp_path / ".lmstudio").mkdir()
    for content in (b"", b"[]", b'{"downloadsFolder": 7}', b"\xff"):
        (tmp_path / ".lmstudio" / "settings.json").write_bytes(content)
        assert paths_of("LM Studio")[0] == tmp_path / ".lmstudio" / "models"


def test_directories_are_searched_even_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert "this directory" in [store.label for store in places()]


def test_a_directory_with_two_names_is_searched_once(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    stores = places((str(tmp_path / "real"), str(tmp_path / "link")))
    assert [store.label for store in stores if "real" in store.label or "link" in store.label] == [
        "~/real"
    ]


def test_downloads_go_into_the_first_directory_of_the_settings(tmp_path: Path) -> None:
    assert download_directory((str(tmp_path / "a"), str(tmp_path / "b"))) == tmp_path / "a"
    default = download_directory(())
    assert default is not None
    assert default.name == "models"
