"""Places follow the settings and each program's environment variables, and never raise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.models.library.model_files import download_directory, places


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A home, and an environment that names nothing."""
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
    return [place.path for place in places() if place.label == label]


def test_directories_of_the_settings_come_first_with_short_names(tmp_path: Path) -> None:
    found = places((str(tmp_path / "Models"), "/data/gguf", "relative", "bad\0"))
    assert [(place.label, place.path) for place in found[:2]] == [
        ("~/Models", tmp_path / "Models"),
        ("/data/gguf", Path("/data/gguf")),
    ]
    assert all(place.path.is_absolute() for place in found)


def test_ollama_is_found_at_home_and_where_its_variable_points(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert paths_of("Ollama")[0] == tmp_path / ".ollama" / "models"
    monkeypatch.setenv("OLLAMA_MODELS", "/big/ollama")
    assert paths_of("Ollama")[:2] == [Path("/big/ollama"), tmp_path / ".ollama" / "models"]


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, "{home}/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HF_HOME": "/hf", "XDG_CACHE_HOME": "/c"}, "/hf/hub"),
        ({"HF_HUB_CACHE": "/hub", "HF_HOME": "/hf"}, "/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
    ],
)
def test_hugging_face_variables_are_honoured(
    environ: dict[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert paths_of("Hugging Face") == [Path(wanted.format(home=tmp_path))]


def test_lm_studio_is_found_by_its_pointer_and_its_settings(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".lmstudio-home-pointer").write_text(f"{elsewhere}\n")
    (elsewhere / "settings.json").write_text(json.dumps({"downloadsFolder": "/big/models"}))
    found = paths_of("LM Studio")
    assert found[:2] == [Path("/big/models"), elsewhere / "models"]
    assert tmp_path / ".lmstudio" / "models" in found


def test_unsound_lm_studio_settings_are_ignored(tmp_path: Path) -> None:
    (tmp_path / ".lmstudio").mkdir()
    for content in (b"", b"[]", b'{"downloadsFolder": 7}', b"\xff"):
        (tmp_path / ".lmstudio" / "settings.json").write_bytes(content)
        assert paths_of("LM Studio")[0] == tmp_path / ".lmstudio" / "models"


def test_without_a_home_there_are_still_places(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert "this directory" in [place.label for place in places()]


def test_one_directory_under_two_names_is_one_place(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    found = places((str(tmp_path / "real"), str(tmp_path / "link")))
    assert [place.label for place in found if "real" in place.label or "link" in place.label] == [
        "~/real"
    ]


def test_downloads_go_into_the_first_directory_of_the_settings(tmp_path: Path) -> None:
    assert download_directory((str(tmp_path / "a"), str(tmp_path / "b"))) == tmp_path / "a"
    own = download_directory(())
    assert own is not None
    assert own.name == "models"
