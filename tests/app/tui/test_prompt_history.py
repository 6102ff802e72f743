import json
import os
import stat
from pathlib import Path

import pytest

from app.tui.chat import history as prompt_history
from app.tui.chat.draft import Draft, write_chip
from app.tui.chat.history import append_history, read_history

CHIP = write_chip(1, "pasted\ntext")
FOLDED = Draft(f"see {CHIP}", {CHIP: "pasted\ntext"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "history.jsonl"


def test_what_is_kept_comes_back_in_order_folds_and_all(file: Path):
    for draft in (Draft("one"), FOLDED, Draft("two\nlines")):
        assert append_history(file, draft) is None
    assert read_history(file) == [Draft("one"), FOLDED, Draft("two\nlines")]


def test_file_and_directory_are_for_the_user_alone(file: Path):
    append_history(file, FOLDED)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"3",
        b'{"shown": 3, "folds": {}}',
        b'{"shown": "x"}',
        b'{"shown": "x", "folds": []}',
        b'{"shown": "x", "folds": {"y": 3}}',
        b'{"shown": "  ", "folds": {}}',
        b"[" * 60_000,
        b'{"shown": "' + b"x" * 70_000 + b'", "folds": {}}',
    ],
)
def test_a_line_that_is_not_sound_is_passed_over(file: Path, line: bytes):
    append_history(file, Draft("before"))
    with file.open("ab") as stream:
        stream.write(line + b"\n")
    append_history(file, Draft("after"))
    assert read_history(file) == [Draft("before"), Draft("after")]


def test_what_acts_on_a_terminal_is_cleaned(file: Path):
    file.parent.mkdir()
    entry = {"shown": f"\x1b[31m {CHIP} \ud800", "folds": {CHIP: "\x07", "other": "\x1b"}}
    file.write_text(json.dumps(entry) + "\n", encoding="utf-8")
    (draft,) = read_history(file)
    assert draft == Draft(f"␛[31m {CHIP} �", {CHIP: "␇"})


def test_a_link_a_pipe_and_a_directory_are_no_history(file: Path, tmp_path: Path):
    file.parent.mkdir(mode=0o700)
    (tmp_path / "elsewhere").write_text('{"shown": "x", "folds": {}}\n', encoding="utf-8")
    file.symlink_to(tmp_path / "elsewhere")
    assert read_history(file) == []
    assert "not kept" in str(append_history(file, Draft("x")))
    file.unlink()
    os.mkfifo(file)
    assert read_history(file) == []
    assert "not kept" in str(append_history(file, Draft("x")))
    file.unlink()
    file.mkdir()
    assert read_history(file) == []
    assert "not kept" in str(append_history(file, Draft("x")))


def test_the_file_does_not_grow_for_ever(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompt_history, "MAX_FILE_BYTES", 2000)
    for i in range(100):
        assert append_history(file, Draft(f"message {i}")) is None
        assert file.stat().st_size <= 2100
    assert read_history(file)[-1] == Draft("message 99")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(list(file.parent.iterdir())) == 1


def test_a_huge_message_is_not_kept_in_the_file(file: Path):
    assert append_history(file, Draft("x" * 70_000)) is None
    assert read_history(file) == []


def test_without_a_place_nothing_is_kept(tmp_path: Path):
    assert append_history(None, Draft("x")) is None
    assert read_history(None) == []
