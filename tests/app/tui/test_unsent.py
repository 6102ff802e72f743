"""Drafts kept between an unwanted end and the next start."""

from __future__ import annotations

import stat
from pathlib import Path
from unittest.mock import patch

import pytest

from app.tui import prompt_history
from app.tui.draft import Draft, write_chip
from app.tui.prompt_history import UnsentFile

CHIP = write_chip(1, "pasted text")
DRAFTS = [Draft("one"), Draft(f"see {CHIP}", {CHIP: "pasted text"}), Draft("two\nlines")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "unsent.jsonl"


def test_what_is_kept_is_taken_once_with_its_pastes(path: Path) -> None:
    assert UnsentFile(path).keep(DRAFTS) == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert UnsentFile(path).take() == DRAFTS
    assert not path.exists()
    assert UnsentFile(path).take() == []


def test_two_programs_that_end_together_keep_both(path: Path) -> None:
    UnsentFile(path).keep(DRAFTS[:1])
    UnsentFile(path).keep(DRAFTS[2:])
    assert UnsentFile(path).take() == [DRAFTS[0], DRAFTS[2]]


def test_a_damaged_line_costs_that_line_and_what_acts_on_a_terminal_is_shown(path: Path) -> None:
    UnsentFile(path).keep(DRAFTS)
    with path.open("ab") as file:
        file.write(b'\xff{\n[1]\n{"shown": "a\\u001b[31m", "folds": {}}\n{"shown": 3, "folds": {}}\n')
    assert UnsentFile(path).take() == [*DRAFTS, Draft("a␛[31m")]


def test_the_newest_are_kept_where_not_all_fit(path: Path) -> None:
    with patch.object(prompt_history, "MAX_UNSENT_BYTES", 100):
        assert UnsentFile(path).keep([Draft(f"message {n}") for n in range(5)]) == f"{path}: is full"
        assert UnsentFile(path).take() == [Draft("message 3"), Draft("message 4")]


def test_nothing_is_followed_and_nothing_raises(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("other")
    path.parent.mkdir(mode=0o700)
    path.symlink_to(other)
    assert UnsentFile(path).keep(DRAFTS).startswith(f"{path}: ")
    assert UnsentFile(path).take() == []
    assert other.read_text() == "other"
    assert UnsentFile(None).keep(DRAFTS) == "no directory for the program's state is writable"
    assert UnsentFile(None).take() == []
