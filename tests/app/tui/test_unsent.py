"""Drafts kept between an unwanted end and the next start."""

from __future__ import annotations

import stat
from pathlib import Path
from unittest.mock import patch

import pytest

from app.tui.chat import history as prompt_history
from app.tui.chat.draft import Draft, write_chip
from app.tui.chat.history import keep_unsent, take_unsent

CHIP = write_chip(1, "pasted text")
DRAFTS = [Draft("one"), Draft(f"see {CHIP}", {CHIP: "pasted text"}), Draft("two\nlines")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "unsent.jsonl"


def test_what_is_kept_is_taken_once_with_its_pastes(path: Path) -> None:
    assert keep_unsent(path, DRAFTS) == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert take_unsent(path) == DRAFTS
    assert not path.exists()
    assert take_unsent(path) == []


def test_two_programs_that_end_together_keep_both(path: Path) -> None:
    keep_unsent(path, DRAFTS[:1])
    keep_unsent(path, DRAFTS[2:])
    assert take_unsent(path) == [DRAFTS[0], DRAFTS[2]]


def test_a_damaged_line_costs_only_itself_and_escapes_are_shown(path: Path) -> None:
    keep_unsent(path, DRAFTS)
    with path.open("ab") as file:
        file.write(
            b'\xff{\n[1]\n{"shown": "a\\u001b[31m", "folds": {}}\n{"shown": 3, "folds": {}}\n'
        )
    assert take_unsent(path) == [*DRAFTS, Draft("a␛[31m")]


def test_the_newest_are_kept_where_not_all_fit(path: Path) -> None:
    with patch.object(prompt_history, "MAX_UNSENT_BYTES", 100):
        assert keep_unsent(path, [Draft(f"message {n}") for n in range(5)]) == f"{path}: is full"
        assert take_unsent(path) == [Draft("message 3"), Draft("message 4")]


def test_nothing_is_followed_and_nothing_raises(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("other")
    path.parent.mkdir(mode=0o700)
    path.symlink_to(other)
    assert keep_unsent(path, DRAFTS).startswith(f"{path}: ")
    assert take_unsent(path) == []
    assert other.read_text() == "other"
    assert keep_unsent(None, DRAFTS) == "no directory for the program's state is writable"
    assert take_unsent(None) == []
