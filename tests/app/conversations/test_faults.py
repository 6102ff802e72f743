"""Failures of the disk, tested as SQLite does: the n-th statement fails, for n = 1, 2, ... until
none does, and nothing that was saved may be lost."""

import errno
import fcntl
import os
import sqlite3
import threading
from pathlib import Path

import pytest

from app.conversations import database, upkeep
from app.conversations import journal as journal_module
from app.conversations.conversation import Conversation
from app.conversations.locks import StoreError
from app.conversations.store import Store
from tests.app.conversations.talk import PATIENCE_S, answer, ask, journal, saved_talk, texts_in

FULL = "database or disk is full"
BROKEN = "disk I/O error"


class FailingDisk:
    """Disk on which one statement of the saver thread fails, or all statements from that one on."""

    def __init__(self, monkeypatch, first_failure, error, stays):
        self.n = 0
        self.first_failure = first_failure
        self.stays = stays
        self.error = error
        self.is_mended = False
        real = sqlite3.connect
        monkeypatch.setattr(
            sqlite3,
            "connect",
            lambda *arguments, **options: real(*arguments, factory=self.connection(), **options),
        )

    def connection(disk):
        class Connection(sqlite3.Connection):
            def execute(self, *arguments):
                is_counted = (
                    threading.current_thread().name == "jalopy-saver" and arguments[0] != "ROLLBACK"
                )
                if is_counted and not disk.is_mended:
                    disk.n += 1
                    if disk.n == disk.first_failure or (disk.stays and disk.n > disk.first_failure):
                        raise sqlite3.OperationalError(disk.error)
                return super().execute(*arguments)

        return Connection


def _save_talk(root: Path) -> tuple[list[str], str]:
    live_journal = journal(root)
    conversation = Conversation("Be brief.")
    ask(live_journal, conversation, "question")
    answer(live_journal, conversation, "answer")
    texts = [message.text for message in conversation.messages]
    return texts, live_journal.close(PATIENCE_S)


def test_one_failure_anywhere_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "RETRY_S", 0.0)
    n_failed = 0
    for index in range(1, 300):
        root = tmp_path / str(index) / "state"
        with monkeypatch.context() as patched:
            disk = FailingDisk(patched, index, BROKEN, stays=False)
            texts, trouble = _save_talk(root)
        if disk.n < index:
            break
        n_failed += 1
        assert texts_in(root) == texts, f"statement {index}: {trouble}"
        assert Store(root).ids() == ["000001"]
    assert n_failed > 20
    assert disk.n < index


def test_a_full_disk_is_reported_and_saved_texts_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "RETRY_S", 0.0)
    for index in range(1, 300, 3):
        root = tmp_path / str(index) / "state"
        with monkeypatch.context() as patched:
            disk = FailingDisk(patched, index, FULL, stays=True)
            texts, trouble = _save_talk(root)
        if disk.n < index:
            break
        is_whole = [texts_in(root, conversation_id) for conversation_id in Store(root).ids()] == [
            texts
        ]
        assert trouble == "the disk is full" or (is_whole and trouble == "")
        for conversation_id in Store(root).ids():
            saved_texts = texts_in(root, conversation_id)
            assert saved_texts[:-1] == texts[: len(saved_texts) - 1] if saved_texts else True


def test_a_database_that_cannot_grow_is_a_full_disk(tmp_path, monkeypatch):
    root = tmp_path / "state"
    open_file = database.open_file

    def open_small(*arguments):
        db = open_file(*arguments)
        db.execute("PRAGMA max_page_count=40")
        return db

    monkeypatch.setattr(database, "open_file", open_small)
    live_journal = journal(root)
    conversation = Conversation()
    ask(live_journal, conversation, "question")
    assert live_journal.wait_until_saved(PATIENCE_S)
    answer(live_journal, conversation, "a long answer " * 20_000)
    assert live_journal.close(PATIENCE_S) == "the disk is full"
    monkeypatch.undo()
    assert texts_in(root)[0] == "question"


def test_saving_continues_when_there_is_space_again(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "RETRY_S", 0.01)
    root = tmp_path / "state"
    with monkeypatch.context() as patched:
        disk = FailingDisk(patched, 1, FULL, stays=True)
        live_journal = journal(root)
        conversation = Conversation()
        ask(live_journal, conversation, "question")
        assert not live_journal.wait_until_saved(PATIENCE_S, waits_for_room=False)
        assert live_journal.trouble == "the disk is full"
        disk.is_mended = True
        assert live_journal.wait_until_saved(PATIENCE_S)
    assert live_journal.trouble == ""
    assert live_journal.close(PATIENCE_S) == ""
    assert texts_in(root) == ["question"]


def _saver_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "jalopy-saver"]


def test_an_unsaved_conversation_is_saved_once_there_is_space(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "RETRY_S", 0.01)
    root = tmp_path / "state"
    threads_before = _saver_threads()
    with monkeypatch.context() as patched:
        disk = FailingDisk(patched, 1, FULL, stays=True)
        live_journal = journal(root)
        conversation = Conversation()
        ask(live_journal, conversation, "question")
        live_journal.begin()
        disk.is_mended = True
        # The thread ends by itself once it has nothing to save.
        for thread in set(_saver_threads()) - set(threads_before):
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    assert texts_in(root) == ["question"]
    assert live_journal.trouble == ""
    assert live_journal.close(0) == ""


def test_a_conversation_never_saved_is_reported_at_the_end(tmp_path, monkeypatch):
    root = tmp_path / "state"
    threads_before = _saver_threads()
    with monkeypatch.context() as patched:
        FailingDisk(patched, 1, FULL, stays=True)
        live_journal = journal(root)
        conversation = Conversation()
        ask(live_journal, conversation, "question")
        live_journal.begin()
        ask(live_journal, Conversation(), "another")
        assert live_journal.close(PATIENCE_S) == "the disk is full"
        assert set(_saver_threads()) <= set(threads_before)


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_directory_only_prevents_saving(tmp_path):
    texts = saved_talk(tmp_path / "state")
    (tmp_path / "state").chmod(0o500)
    try:
        opened = Store(tmp_path / "state").open("000001")
        assert [message.text for message in opened.saved.conversation.messages] == texts
        assert opened.open_conversation is None
        live_journal = journal(tmp_path / "state")
        conversation = Conversation()
        ask(live_journal, conversation, "question")
        assert live_journal.close(PATIENCE_S)
    finally:
        (tmp_path / "state").chmod(0o700)


def test_a_directory_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "state").write_text("a file, no directory")
    live_journal = journal(tmp_path / "state" / "conversations")
    conversation = Conversation()
    ask(live_journal, conversation, "question")
    answer(live_journal, conversation, "answer")
    assert "not writable" in live_journal.close(PATIENCE_S)


def test_saving_waits_for_another_program_that_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    monkeypatch.setattr(journal_module, "RETRY_S", 0.0)
    root = tmp_path / "state"
    saved_talk(root)
    other_connection = sqlite3.connect(root / database.NAME, isolation_level=None)
    other_connection.execute("BEGIN IMMEDIATE")
    live_journal = journal(root)
    opened = Store(root).open("000001")
    live_journal.resume(opened)
    ask(live_journal, opened.saved.conversation, "question")
    assert not live_journal.wait_until_saved(PATIENCE_S, waits_for_room=False)
    assert live_journal.trouble == "another jalopy keeps the saved conversations busy"
    other_connection.execute("COMMIT")
    other_connection.close()
    assert live_journal.close(PATIENCE_S) == ""
    assert texts_in(root)[-1] == "question"


def test_clock_jumps_do_not_change_the_order(tmp_path):
    root = tmp_path / "state"
    for moment in (
        "2026-11-21T10:00:00",
        "1970-01-01T00:00:00",
        "2099-01-01T00:00:00",
        "2001-01-01T00:00:00",
    ):
        live_journal = journal(root)
        conversation = Conversation()
        live_journal.clock_text = lambda moment=moment: moment
        ask(live_journal, conversation, moment)
        assert live_journal.close(PATIENCE_S) == ""
    store = Store(root)
    assert [entry.id for entry in store.entries()] == ["000004", "000003", "000002", "000001"]
    assert store.last_used("/models/tiny.gguf") == "000004"


def disable_locks(monkeypatch, error="ENOLCK"):
    def refuse(*_):
        raise OSError(getattr(errno, error), os.strerror(getattr(errno, error)))

    monkeypatch.setattr(fcntl, "fcntl", refuse)


@pytest.mark.parametrize("error", ["ENOLCK", "EOPNOTSUPP", "ENOSYS", "EINVAL"])
def test_without_file_locks_everything_is_saved_unlocked(tmp_path, monkeypatch, error):
    disable_locks(monkeypatch, error)
    root = tmp_path / "state"
    live_journal = journal(root)
    conversation = Conversation()
    ask(live_journal, conversation, "question")
    assert live_journal.wait_until_saved(PATIENCE_S)
    assert (live_journal.trouble, live_journal.is_unlocked) == ("", True)
    assert live_journal.close(PATIENCE_S) == ""
    opened = Store(root).open("000001")
    assert opened.open_conversation is not None
    assert not opened.open_conversation.is_locked
    assert opened.notice == ""
    opened.open_conversation.close()
    assert texts_in(root) == ["question"]
    Store(root).delete("000001")
    assert Store(root).ids() == []


def test_without_file_locks_a_second_program_refuses_to_save(tmp_path, monkeypatch):
    disable_locks(monkeypatch)
    root = tmp_path / "state"
    saved_talk(root)
    (root / f"{database.NAME}.lock").mkdir()  # as left by a killed process
    host = os.uname().nodename
    for other_process in (f"1 {host}", "1 elsewhere"):
        (root / database.ONLY_NAME).write_text(other_process)
        live_journal = journal(root)
        ask(live_journal, Conversation(), "question")
        assert (
            f"files cannot be locked here, and process {other_process} saves there"
            in live_journal.close(PATIENCE_S)
        )
        with pytest.raises(StoreError, match="files cannot be locked"):
            Store(root).ids()
    (root / database.ONLY_NAME).write_text(f"4194304000 {host}")  # no such process
    assert Store(root).ids() == ["000001"]


def test_another_failure_to_lock_is_trouble(tmp_path, monkeypatch):
    disable_locks(monkeypatch, "EIO")
    live_journal = journal(tmp_path / "state")
    conversation = Conversation()
    ask(live_journal, conversation, "question")
    assert live_journal.close(PATIENCE_S) == os.strerror(errno.EIO)


def test_without_file_locks_all_files_use_the_same_vfs(tmp_path, monkeypatch):
    disable_locks(monkeypatch)
    addresses = []
    connect = sqlite3.connect

    def record(address, *arguments, **options):
        addresses.append(address)
        return connect(address, *arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", record)
    root = tmp_path / "state"
    saved_talk(root)
    Store(root).check_and_copy(1e9)
    Store(root).delete("000001")
    (root / database.NAME).write_bytes(b"x" * 5000)
    Store(root).ids()
    opened = {Path(address.removeprefix("file:").partition("?")[0]).name for address in addresses}
    assert {database.NAME, "backup-new.db", *database.BACKUPS[:1], "mended.db"} <= opened
    assert all(address.endswith("vfs=unix-dotfile") for address in addresses)


def test_a_file_saved_with_locks_is_read_without_locks(tmp_path, monkeypatch):
    root = tmp_path / "state"
    texts = saved_talk(root)
    assert (root / database.NAME).read_bytes()[18:20] == b"\2\2", "it has a write-ahead log"
    disable_locks(monkeypatch)
    assert texts_in(root) == texts
    live_journal = journal(root)
    conversation = Conversation()
    ask(live_journal, conversation, "question")
    assert live_journal.close(PATIENCE_S) == ""


@pytest.mark.slow
def test_the_daily_copy_waits_for_a_limited_time(tmp_path, monkeypatch):
    root = tmp_path / "state"
    saved_talk(root)
    monkeypatch.setattr(upkeep, "BUSY_S", 0.0)
    copied = upkeep._empty_file

    def locked(path):
        live_journal = copied(path)
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("CREATE TABLE x(y)")
        holder.execute("BEGIN EXCLUSIVE")
        holders.append(holder)
        return live_journal

    holders = []
    monkeypatch.setattr(upkeep, "_empty_file", locked)
    with pytest.raises(StoreError, match="busy"):
        Store(root).check_and_copy(1e9)
    holders[0].close()
