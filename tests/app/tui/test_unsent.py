"""Drafts saved between an unwanted end and the next start."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from app.conversations import drafts
from app.conversations.database import NAME
from app.program import paths
from app.tui.chat.draft import Draft, write_chip
from app.tui.chat.history import store_drafts, take_stored_drafts, write_draft

CHIP = write_chip(1, "pasted text")
DRAFTS = [Draft("one"), Draft(f"see {CHIP}", {CHIP: "pasted text"}), Draft("two\nlines")]


@pytest.fixture
def database() -> Path:
    """Path of the database, which need not exist."""
    root = paths.conversations_dir()
    assert root is not None
    return root / NAME


def test_saved_drafts_are_taken_once_with_their_pastes(database: Path) -> None:
    assert store_drafts(DRAFTS) == ""
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    assert take_stored_drafts() == DRAFTS
    assert take_stored_drafts() == []


def test_a_start_without_drafts_creates_no_file(database: Path) -> None:
    assert take_stored_drafts() == []
    assert not database.parent.exists()


def test_drafts_of_two_programs_are_both_saved() -> None:
    store_drafts(DRAFTS[:1])
    store_drafts(DRAFTS[2:])
    assert take_stored_drafts() == [DRAFTS[0], DRAFTS[2]]


def test_a_damaged_row_costs_only_itself(database: Path) -> None:
    store_drafts(DRAFTS)
    rows = [
        "{",
        "[1]",
        '{"shown": "a\\u001b[31m", "folds": {}}',
        '{"shown": 3, "folds": {}}',
        b"\xff",
    ]
    with closing(sqlite3.connect(database)) as db, db:
        db.executemany("INSERT INTO draft(content) VALUES(?)", [(row,) for row in rows])
    assert take_stored_drafts() == [*DRAFTS, Draft("a␛[31m")]


def test_the_newest_drafts_are_saved_if_not_all_fit() -> None:
    with patch.object(drafts, "MOST_DRAFT_BYTES", 100):
        messages = [Draft(f"message {n}") for n in range(5)]
        assert store_drafts(messages) == "there are too many unsent messages"
    assert take_stored_drafts() == [Draft("message 3"), Draft("message 4")]


def test_no_link_is_followed_and_nothing_raises(database: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("other")
    database.parent.mkdir(mode=0o700, parents=True)
    database.symlink_to(other)
    assert store_drafts(DRAFTS) == f"{NAME} is not a regular file"
    assert take_stored_drafts() == []
    assert other.read_text() == "other"


def test_the_file_of_an_older_version_is_read_once() -> None:
    file = paths.unsent_file()
    assert file is not None
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_bytes(write_draft(DRAFTS[0]) + b"\xff{\n" + write_draft(DRAFTS[1]))
    store_drafts(DRAFTS[2:])
    assert take_stored_drafts() == DRAFTS
    assert not file.exists()
