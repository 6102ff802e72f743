"""Search for a model by the name that lists show."""

from pathlib import Path

import pytest

from app.models.library.find_by_name import named_model
from app.program.bundled_model import starter_file
from app.program.refusals import Refusal
from app.program.state import remember_model
from tests.engine import tiny_gguf


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    directory = tmp_path / "models"
    directory.mkdir()
    for name in ("Tall-1B-Q8_0", "Tall-1B-Instruct-Q8_0", "small-0.5b.Q8_0"):
        tiny_gguf.write(directory / f"{name}.gguf", "llama", "Q8_0")
    return directory


def test_names_in_the_list_are_resolved_to_files(folder: Path) -> None:
    for text, name in (
        ("small-0.5b", "small-0.5b.Q8_0"),
        ("SMALL", "small-0.5b.Q8_0"),
        ("small-0.5b.Q8_0.gguf", "small-0.5b.Q8_0"),
        ("tall-1b", "Tall-1B-Q8_0"),
        ("Tall-1B-Instruct", "Tall-1B-Instruct-Q8_0"),
    ):
        assert named_model(text, [str(folder)]) == folder / f"{name}.gguf"


def test_an_ambiguous_prefix_lists_the_matches(folder: Path) -> None:
    with pytest.raises(
        Refusal, match=r'^"tall" matches several models: Tall-1B-Instruct-Q8_0, Tall-1B-Q8_0$'
    ):
        named_model("tall", [str(folder)])


def test_a_name_of_no_model_is_refused(folder: Path) -> None:
    with pytest.raises(
        Refusal, match=r'^no model is called "nosuch" \(jalopy models lists them\)$'
    ):
        named_model("nosuch", [str(folder)])


def test_paths_and_unknown_files_stay_unchanged(folder: Path) -> None:
    for text in ("./tall-1b", "/tall-1b", "nothing.gguf", "a/b.gguf", "a/b", ""):
        assert named_model(text, [str(folder)]) == Path(text)
    Path("tall-1b").write_bytes(b"")
    assert named_model("tall-1b", [str(folder)]) == Path("tall-1b")
    assert named_model("starter", [str(folder)]) == starter_file()


def test_a_model_opened_by_path_and_its_neighbours_are_found(folder: Path) -> None:
    with pytest.raises(Refusal, match="no model is called"):
        named_model("small", [])
    remember_model(folder / "Tall-1B-Q8_0.gguf")
    assert named_model("small", []) == folder / "small-0.5b.Q8_0.gguf"
    assert named_model("tall-1b", []) == folder / "Tall-1B-Q8_0.gguf"
