"""Repair of a damaged database: readable rows are kept, lost rows come from a copy, and a line
reports it."""

import os
import random
import shutil
import sqlite3
from contextlib import closing

import pytest

from app.cli.dispatch import guard
from app.cli.sessions import sessions
from app.conversations import upkeep
from app.conversations.conversation import Conversation
from app.conversations.database import BACKUPS, MARK_NAME, NAME
from app.conversations.locks import StoreError
from app.conversations.store import Store
from app.program import exit_codes, notices, paths
from tests.app.chat_driver import chatting
from tests.app.conversations.talk import PATIENCE_S, answer, ask, journal, saved_talk, texts_in

ID = "000001"
PAGE = 4096


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state" / "conversations"


@pytest.fixture(scope="module")
def talks(tmp_path_factory):
    """Return the directory of ten conversations of 20 messages, and their texts."""
    directory = tmp_path_factory.mktemp("talks") / "conversations"
    return directory, {f"{n + 1:06d}": saved_talk(directory, 10) for n in range(10)}


@pytest.fixture
def original_texts(root, talks):
    directory, texts = talks
    shutil.copytree(directory, root)
    return dict(texts)


def write_noise(path, n_bytes, seed, first=0):
    """Overwrite random positions of a file with random bytes."""
    content = bytearray(path.read_bytes())
    chance = random.Random(seed)
    for _ in range(n_bytes):
        content[chance.randrange(first, len(content))] ^= chance.randrange(1, 256)
    path.write_bytes(content)


def texts_of_all(root):
    return {
        conversation_id: [text for text in texts_in(root, conversation_id) if text]
        for conversation_id in Store(root).ids()
    }


def repair(root):
    """Use the database until it is repaired, and return the line that reports the repair."""
    (root / MARK_NAME).touch()
    Store(root).ids()
    return Store(root).take_notice()


@pytest.mark.parametrize("seed", range(6))
def test_random_damage_loses_little_and_never_crashes(root, original_texts, seed):
    write_noise(root / NAME, 3, seed)
    line = repair(root)
    assert line.startswith(f"{NAME} was damaged: ")
    assert "\n" not in line
    assert (root / "damaged-1.db").exists()
    assert Store(root).take_notice() == ""
    n_left = sum(len(texts) for texts in texts_of_all(root).values())
    assert n_left >= 100, "at least half of the 200 messages survive"
    with closing(sqlite3.connect(root / NAME)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    live_journal = journal(root)
    ask(live_journal, Conversation(), "and on")
    assert live_journal.close(PATIENCE_S) == ""


@pytest.mark.parametrize("seed", range(3))
def test_everything_in_the_backup_copy_is_recovered(root, original_texts, seed):
    Store(root).check_and_copy(1e9)
    texts = saved_talk(root, 1)
    content = bytearray((root / NAME).read_bytes())
    for page in random.Random(seed).sample(range(len(content) // PAGE), 4):
        content[page * PAGE : (page + 1) * PAGE] = os.urandom(PAGE)
    (root / NAME).write_bytes(content)
    repair(root)
    saved_texts = texts_of_all(root)
    assert {
        conversation_id: saved_texts[conversation_id] for conversation_id in original_texts
    } == original_texts
    assert set(saved_texts) - set(original_texts) <= {"000011"}
    assert set(saved_texts.get("000011", [])) <= set(texts)


@pytest.mark.parametrize("content", [b"", b"x", b"SQLite format 3\0", b"x" * 5000, None])
def test_a_lost_database_is_restored_from_the_copy(root, original_texts, content):
    Store(root).check_and_copy(1e9)
    (root / NAME).unlink()
    if content is not None:
        (root / NAME).write_bytes(content)
    assert texts_of_all(root) == original_texts
    assert "200 more from a copy" in Store(root).take_notice()


def test_a_lost_first_page_loses_nothing_else(root, original_texts):
    with (root / NAME).open("r+b") as file:
        file.write(os.urandom(PAGE))
    assert texts_of_all(root) == original_texts
    assert "200 messages recovered" in Store(root).take_notice()


def test_a_conversation_edited_after_the_copy_is_not_mixed(root):
    live_journal = journal(root)
    conversation = Conversation()
    for n in range(3):
        ask(live_journal, conversation, f"question {n}")
        answer(live_journal, conversation, f"answer {n}")
    assert live_journal.wait_until_saved(PATIENCE_S)
    Store(root).check_and_copy(1e9)
    conversation.cut(2)
    ask(live_journal, conversation, "another way")
    assert live_journal.close(PATIENCE_S) == ""
    repair(root)
    assert texts_in(root) == ["question 0", "answer 0", "another way"]


def test_lost_messages_are_restored_to_their_positions(root, original_texts):
    Store(root).check_and_copy(1e9)
    with closing(sqlite3.connect(root / NAME)) as db, db:
        db.execute("DELETE FROM message WHERE conversation=1 AND place IN (3, 4)")
        db.execute("DELETE FROM conversation WHERE id=2")
    assert "2 more from a copy" in repair(root)
    assert texts_of_all(root) == original_texts
    assert Store(root).read("000002").conversation.system == "Be brief."


def test_a_deleted_conversation_is_not_restored(root, original_texts):
    for now_s in (1e9, 2e9):
        Store(root).check_and_copy(now_s)
    Store(root).delete(ID)
    (root / NAME).unlink()
    del original_texts[ID]
    assert texts_of_all(root) == original_texts


def test_a_delete_keeps_the_age_of_the_copies(root, original_texts):
    for now_s in (1e9, 2e9):
        Store(root).check_and_copy(now_s)
    os.utime(root / BACKUPS[0], (5e8, 5e8))
    (root / BACKUPS[1]).write_bytes(b"\xff" * 9000)
    Store(root).delete(ID)
    assert (root / BACKUPS[0]).stat().st_mtime == 5e8
    assert not (root / BACKUPS[1]).exists(), (
        "a damaged copy may contain text of the deleted conversation"
    )


def test_a_check_finds_damage_and_the_next_use_repairs_it(root, original_texts):
    content = bytearray((root / NAME).read_bytes())
    content[-PAGE:] = b"\xff" * PAGE
    (root / NAME).write_bytes(content)
    Store(root).check_and_copy(1e9)
    assert not (root / BACKUPS[0]).exists(), "no copy of a damaged database"
    assert (root / MARK_NAME).exists()
    assert len(texts_of_all(root)) == 10
    assert Store(root).take_notice()
    assert not (root / MARK_NAME).exists()


def test_two_copies_are_kept_and_one_is_made_each_day(root, original_texts):
    Store(root).check_and_copy(1e9)
    first = (root / BACKUPS[0]).stat()
    Store(root).check_and_copy(first.st_mtime + 3600)
    assert not (root / BACKUPS[1]).exists()
    Store(root).check_and_copy(first.st_mtime + upkeep.COPY_PERIOD_S + 1)
    assert (root / BACKUPS[1]).stat().st_ino == first.st_ino
    for name in BACKUPS:
        assert (root / name).stat().st_mode & 0o777 == 0o600
        with closing(sqlite3.connect(root / name)) as db:
            assert db.execute("SELECT count(*) FROM message").fetchone() == (200,)
    assert not [path.name for path in root.iterdir() if path.name.startswith("backup-new")]


def test_a_database_open_elsewhere_is_not_repaired(root, original_texts):
    opened = Store(root).open(ID)
    (root / MARK_NAME).touch()
    with pytest.raises(StoreError, match="is damaged and in use"):
        Store(root).ids()
    opened.open_conversation.close()
    assert len(Store(root).ids()) == 10


def test_damage_to_an_open_database_is_repaired_when_saving(root, original_texts):
    live_journal = journal(root)
    opened = Store(root).open(ID)
    live_journal.resume(opened)
    assert live_journal.wait_until_saved(PATIENCE_S)
    (root / MARK_NAME).touch()
    ask(live_journal, opened.saved.conversation, "and now?")
    assert live_journal.close(PATIENCE_S) == ""
    assert texts_in(root) == [*original_texts[ID], "and now?"]
    assert Store(root).take_notice()


def test_a_conversation_lost_while_open_is_saved_again(root, original_texts):
    live_journal = journal(root)
    opened = Store(root).open(ID)
    live_journal.resume(opened)
    with closing(sqlite3.connect(root / NAME)) as db, db:
        db.execute("DELETE FROM conversation WHERE id=1")
        db.execute("DELETE FROM message WHERE conversation=1 AND place>3")
    ask(live_journal, opened.saved.conversation, "and now?")
    assert live_journal.close(PATIENCE_S) == ""
    messages = Store(root).read(ID).conversation.messages
    assert [m.text for m in messages] == [*original_texts[ID][:4], *[""] * 16, "and now?"]


def test_a_full_disk_during_repair_changes_nothing(root, original_texts, monkeypatch):
    (root / MARK_NAME).touch()
    content = (root / NAME).read_bytes()
    original_open = upkeep.open_file

    def open_small(path, *arguments):
        db = original_open(path, *arguments)
        if path.name == "mended.db":
            db.execute("PRAGMA max_page_count=15")
        return db

    monkeypatch.setattr(upkeep, "open_file", open_small)
    with pytest.raises(StoreError, match="the disk is full"):
        Store(root).ids()
    assert (root / NAME).read_bytes() == content
    monkeypatch.undo()
    assert texts_of_all(root) == original_texts


def test_the_search_index_is_rebuilt(root, original_texts):
    repair(root)
    assert len(Store(root).search("question 7")) == 10
    assert Store(root).search("question 7")[0].snippet


@pytest.mark.parametrize("table", ["search_data", "search_idx"])
def test_a_damaged_search_index_loses_nothing_else(root, original_texts, table):
    with closing(sqlite3.connect(root / NAME)) as db, db:
        db.execute(
            "UPDATE search_data SET block=zeroblob(40)"
            if table == "search_data"
            else f"DELETE FROM {table}"
        )
    live_journal = journal(root)
    opened = Store(root).open(ID)
    live_journal.resume(opened)
    ask(live_journal, opened.saved.conversation, "and now?")
    # Another conversation is open all the time.
    with closing(Store(root).open("000002").open_conversation):
        assert live_journal.close(PATIENCE_S) == ""
    assert len(Store(root).search("question 7")) == 10
    assert Store(root).search("and now?")
    assert texts_of_all(root) == {**original_texts, ID: [*original_texts[ID], "and now?"]}
    assert not list(root.glob("damaged-*"))


def test_a_repair_is_reported_by_the_command_and_next_chat(
    original_texts, root, capsys, monkeypatch
):
    monkeypatch.setattr(paths, "conversations_dir", lambda: root)
    with (root / NAME).open("r+b") as file:
        file.write(os.urandom(50_000))
    assert guard(lambda: sessions([], as_json=False)) == exit_codes.BAD_DATA
    assert "conversations.db was damaged" in capsys.readouterr().err
    assert guard(lambda: sessions([], as_json=False)) == exit_codes.OK
    assert capsys.readouterr().err == ""
    line = Store(root).take_chat_notice()
    assert "the damaged file is now damaged-1.db" in line
    assert Store(root).take_chat_notice() == ""


def test_any_command_reports_a_repair_at_its_end(original_texts, root, capsys):
    (root / MARK_NAME).touch()

    def use_conversations():
        (root / NAME).write_bytes(b"x" * 5000)
        Store(root).ids()
        return exit_codes.OK

    assert guard(use_conversations) == exit_codes.OK
    assert "jalopy: conversations.db was damaged" in capsys.readouterr().err


async def test_a_chat_shows_the_repair_of_an_earlier_command(original_texts, root, monkeypatch):
    (root / MARK_NAME).touch()
    (root / NAME).write_bytes(b"x" * 5000)
    Store(root).ids()
    notices.take_all()  # the command has shown it
    monkeypatch.setattr(paths, "conversations_dir", lambda: root)
    async with chatting() as driver:
        await driver.note("conversations.db was damaged")
    assert Store(root).take_chat_notice() == ""
