"""Tests of reading files in allowed folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.tools.built_in.folders import list_files, read_file
from app.tools.built_in.tool import ToolFailure
from app.tools.mcp.transport import StoppedError


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / "day.txt").write_text("first\nsecond\nthird")
    (folder / "sub" / "deep.md").write_text("deep")
    (folder / ".secret").write_text("hidden")
    (folder / "binary.bin").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "outside.txt").write_text("outside")
    (folder / "way-out").symlink_to(tmp_path / "outside.txt")
    (folder / "way-in").symlink_to(folder / "day.txt")
    return folder


def read(folder: Path, name: str, first_line: int = 1) -> str:
    return read_file([str(folder)], name, first_line, lambda: False)


def test_a_file_is_read_by_its_name_or_its_path(notes: Path) -> None:
    assert read(notes, "day.txt") == "first\nsecond\nthird"
    assert read(notes, str(notes / "sub" / "deep.md")) == "deep"
    assert read(notes, "day.txt", 3) == "third"
    assert read(notes, "way-in") == "first\nsecond\nthird"


@pytest.mark.parametrize(
    "name", ["../outside.txt", "way-out", "/etc/passwd", "sub/../../outside.txt", "~/.bashrc"]
)
def test_files_elsewhere_are_not_read(notes: Path, name: str) -> None:
    with pytest.raises(ToolFailure, match=r"not in a folder|does not exist"):
        read(notes, name)
    with pytest.raises(ToolFailure):
        read(notes, str(notes.parent / "outside.txt"))


@pytest.mark.parametrize("name", [".secret", "binary.bin", "sub", "missing", "", "\0", "x" * 5000])
def test_what_is_no_text_file_is_refused(notes: Path, name: str) -> None:
    with pytest.raises(ToolFailure):
        read(notes, name)


def test_an_allowed_hidden_folder_is_read_inside_another(notes: Path) -> None:
    hidden = notes / ".journal"
    hidden.mkdir()
    (hidden / "may.txt").write_text("rain")
    assert read_file([str(notes), str(hidden)], "may.txt", 1, lambda: False) == "rain"
    with pytest.raises(ToolFailure, match="Hidden files"):
        read(notes, ".journal/may.txt")


def test_a_long_file_is_read_in_pieces(notes: Path) -> None:
    (notes / "long.txt").write_text("\n".join(f"line {n}" for n in range(1, 1001)))
    text = read(notes, "long.txt")
    assert text.endswith("line 400\n[600 more lines: first_line 401 continues]")
    assert read(notes, "long.txt", 801).endswith("line 1000")


def test_names_are_listed_without_hidden_files_and_links(notes: Path) -> None:
    lines = list_files([str(notes)], "").split("\n")
    assert lines[0] == f"{notes}:"
    assert lines[1:] == ["binary.bin (2.5K)", "day.txt (18B)", "sub/"]
    assert "deep.md" in list_files([str(notes)], "sub")
    with pytest.raises(ToolFailure):
        list_files([str(notes)], "..")


def test_without_an_allowed_folder_nothing_is_read(notes: Path) -> None:
    for folders in ([], [str(notes / "missing")]):
        with pytest.raises(ToolFailure, match="/tools allow FOLDER"):
            read_file(folders, "day.txt", 1, lambda: False)


def test_reading_can_be_stopped(notes: Path) -> None:
    with pytest.raises(StoppedError):
        read_file([str(notes)], "day.txt", 1, lambda: True)
