"""Places follow the settings and each program's environment variables, and never raise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.library.places import download_directory, places


def paths_of(label: str, home: Path, **environ: str) -> list[Path]:
    return [place.path for place in places((), environ, home) if place.label == label]


def test_the_directories_of_the_settings_come_first_under_short_names(tmp_path: Path) -> None:
    found = places((str(tmp_path / "Models"), "/data/gguf", "relative", "bad\0"), {}, tmp_path)
    assert [(place.label, place.path) for place in found[:2]] == [
        ("~/Models", tmp_path / "Models"),
        ("/data/gguf", Path("/data/gguf")),
    ]
    assert all(place.path.is_absolute() for place in found)


def test_ollama_is_looked_for_at_home_and_where_its_variable_says(tmp_path: Path) -> None:
    assert paths_of("Ollama", tmp_path)[0] == tmp_path / ".ollama" / "models"
    assert paths_of("Ollama", tmp_path, OLLAMA_MODELS="/big/ollama")[:2] == [
        Path("/big/ollama"),
        tmp_path / ".ollama" / "models",
    ]


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
def test_hugging_face_variables_are_honoured(environ: dict[str, str], wanted: str, tmp_path: Path) -> None:
    assert paths_of("Hugging Face", tmp_path, **environ) == [Path(wanted.format(home=tmp_path))]


def test_lm_studio_is_found_by_its_pointer_and_its_settings(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".lmstudio-home-pointer").write_text(f"{elsewhere}\n")
    (elsewhere / "settings.json").write_text(json.dumps({"downloadsFolder": "/big/models"}))
    found = paths_of("LM Studio", tmp_path)
    assert found[:2] == [Path("/big/models"), elsewhere / "models"]
    assert tmp_path / ".lmstudio" / "models" in found


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"downloadsFolder": 7}', b"\xff", b"[" * 100_000])
def test_settings_of_lm_studio_that_are_not_sound_are_passed_over(content: bytes, tmp_path: Path) -> None:
    (tmp_path / ".lmstudio").mkdir()
    (tmp_path / ".lmstudio" / "settings.json").write_bytes(content)
    assert paths_of("LM Studio", tmp_path)[0] == tmp_path / ".lmstudio" / "models"


def test_without_a_home_there_are_still_places(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", no_home)
    assert "this directory" in [place.label for place in places((), {})]


def test_one_directory_under_two_names_is_one_place(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    found = places((str(tmp_path / "real"), str(tmp_path / "link")), {}, tmp_path)
    assert [place.label for place in found if "real" in place.label or "link" in place.label] == ["~/real"]


def test_downloads_go_into_the_first_directory_of_the_settings(tmp_path: Path) -> None:
    assert download_directory((str(tmp_path / "a"), str(tmp_path / "b"))) == tmp_path / "a"
    own = download_directory(())
    assert own is not None
    assert own.name == "models"
