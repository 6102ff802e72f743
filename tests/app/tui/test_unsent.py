"""Drafts saved while they are typed, and taken at the next start."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from app.conversations import drafts
from app.conversations.database import NAME
from app.program import paths
from app.tui.chat.draft import Draft, write_chip
from app.tui.chat.history import write_draft
from app.tui.chat.unsent_drafts import DraftSaver, UnsentDrafts, store_drafts, take_stored_drafts
from tests.app.chat_driver import chatting

CHIP = write_chip(1, "pasted text")
DRAFTS = [Draft("one"), Draft(f"see {CHIP}", {CHIP: "pasted text"}), Draft("two\nlines")]


@pytest.fixture
def database() -> Path:
    """Path of the database, which need not exist."""
    root = paths.conversations_dir()
    assert root is not None
    return root / NAME


@contextmanager
def as_another_process(name: str = "boot:1:2") -> Iterator[None]:
    """Save drafts as if this were another process."""
    with patch.object(drafts, "process_name", lambda pid: name):
        yield


def test_saved_drafts_are_taken_once_with_their_pastes(database: Path) -> None:
    saver = DraftSaver()
    assert saver.save(UnsentDrafts(DRAFTS, "000007")).result() == ""
    assert stat.S_IMODE(database.stat().st_mode) == 0o600
    next_saver = DraftSaver()
    assert next_saver.take() == UnsentDrafts(DRAFTS, "000007")
    assert next_saver.save(UnsentDrafts()).result() == ""
    assert take_stored_drafts() == UnsentDrafts()


def test_a_start_without_drafts_creates_no_file(database: Path) -> None:
    assert take_stored_drafts() == UnsentDrafts()
    assert DraftSaver().save(UnsentDrafts()).result() == ""
    assert not database.parent.exists()


def test_a_save_replaces_the_drafts_from_before() -> None:
    store_drafts(DRAFTS[:1])
    store_drafts(DRAFTS[2:])
    assert take_stored_drafts().drafts == DRAFTS[2:]
    store_drafts([])
    assert take_stored_drafts().drafts == []


def test_drafts_of_two_ended_programs_are_both_taken() -> None:
    with as_another_process():
        store_drafts(DRAFTS[:1])
    store_drafts(DRAFTS[2:])
    assert take_stored_drafts().drafts == [DRAFTS[0], DRAFTS[2]]


def test_drafts_of_a_running_program_are_left_to_it() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        with as_another_process(drafts.process_name(other.pid)):
            store_drafts(DRAFTS[:1])
        store_drafts(DRAFTS[2:])
        assert take_stored_drafts().drafts == DRAFTS[2:]
        other.communicate()
    assert take_stored_drafts().drafts == [DRAFTS[0], DRAFTS[2]]


def test_drafts_from_before_a_restart_of_the_machine_are_taken() -> None:
    boot, pid, start = drafts.process_name(os.getpid()).split(":")
    for name in (f"other:{pid}:{start}", f"{boot}:{pid}:1", f"{boot}:99999999999999:1", "?", ""):
        with as_another_process(name):
            store_drafts(DRAFTS[:1])
        assert take_stored_drafts().drafts == DRAFTS[:1], name
        store_drafts([])
    assert drafts.process_name(1 << 22) == ""


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
    assert take_stored_drafts().drafts == [*DRAFTS, Draft("a␛[31m")]


def test_the_newest_drafts_are_saved_if_not_all_fit() -> None:
    with patch.object(drafts, "MOST_DRAFT_BYTES", 100):
        messages = [Draft(f"message {n}") for n in range(5)]
        assert store_drafts(messages) == "there are too many unsent messages"
    assert take_stored_drafts().drafts == [Draft("message 3"), Draft("message 4")]


def test_no_link_is_followed_and_nothing_raises(database: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("other")
    database.parent.mkdir(mode=0o700, parents=True)
    database.symlink_to(other)
    assert store_drafts(DRAFTS) == f"{NAME} is not a regular file"
    assert take_stored_drafts().drafts == []
    assert other.read_text() == "other"


def test_the_file_of_an_older_version_is_read_once() -> None:
    file = paths.unsent_file()
    assert file is not None
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.write_bytes(write_draft(DRAFTS[0]) + b"\xff{\n" + write_draft(DRAFTS[1]))
    store_drafts(DRAFTS[2:])
    assert take_stored_drafts() == UnsentDrafts(DRAFTS, "")
    assert not file.exists()


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory in memory, which need not exist."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    directory = paths.memory_directory()
    assert directory is not None
    return directory


def drafts_in(file: Path) -> int:
    """Return the number of drafts in a database; 0 while it has no tables."""
    if not file.exists():
        return 0
    with closing(sqlite3.connect(file)) as db, suppress(sqlite3.OperationalError):
        return int(db.execute("SELECT count(*) FROM draft").fetchone()[0])
    return 0


def test_drafts_in_memory_leave_nothing_on_the_disk(database: Path, memory: Path) -> None:
    saver = DraftSaver()
    assert saver.save(UnsentDrafts(DRAFTS, ""), memory).result() == ""
    assert not database.parent.exists()
    assert stat.S_IMODE(memory.stat().st_mode) == 0o700
    next_saver = DraftSaver()
    assert next_saver.take() == UnsentDrafts(DRAFTS, "")
    assert next_saver.save(UnsentDrafts(), memory).result() == ""
    assert take_stored_drafts() == UnsentDrafts()
    assert not database.parent.exists()


def test_drafts_move_from_memory_to_the_disk_and_back(database: Path, memory: Path) -> None:
    saver = DraftSaver()
    saver.save(UnsentDrafts(DRAFTS), memory).result()
    saver.save(UnsentDrafts(DRAFTS)).result()  # at the end
    assert (drafts_in(database), drafts_in(memory / NAME)) == (3, 0)
    next_saver = DraftSaver()
    assert next_saver.take().drafts == DRAFTS
    next_saver.save(UnsentDrafts(DRAFTS[:1]), memory).result()
    assert (drafts_in(database), drafts_in(memory / NAME)) == (0, 1)


def test_without_a_directory_in_memory_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "relative", "/nowhere/at/all"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        assert paths.memory_directory() is None


@pytest.mark.slow
async def test_a_draft_of_an_unsaved_chat_survives_in_memory(database: Path, memory: Path) -> None:
    async with chatting(save_conversations="off") as driver:
        driver.prompt.show_text("draft")
        driver.chat.composer._begin_saving_drafts()
        await driver.until(lambda: drafts_in(memory / NAME) == 1, "it is in memory")
        assert not database.parent.exists()
        await driver.ask("draft")
        await driver.until(lambda: drafts_in(memory / NAME) == 0, "it is deleted once sent")
    assert not database.parent.exists()
