"""A damaged database: what can be read stays, what cannot comes from a copy, and a line says so."""

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
    """Ten conversations of 20 messages, and where they are."""
    made = tmp_path_factory.mktemp("talks") / "conversations"
    return made, {f"{n + 1:06d}": saved_talk(made, 10) for n in range(10)}


@pytest.fixture
def said(root, talks):
    made, texts = talks
    shutil.copytree(made, root)
    return dict(texts)


def spoil(path, n_bytes, seed, first=0):
    """Write noise somewhere."""
    content = bytearray(path.read_bytes())
    chance = random.Random(seed)
    for _ in range(n_bytes):
        content[chance.randrange(first, len(content))] ^= chance.randrange(1, 256)
    path.write_bytes(content)


def found(root):
    return {one: [text for text in texts_in(root, one) if text] for one in Store(root).ids()}


def mended(root):
    """Use the database until it is whole again; returns the line that says what became of it."""
    (root / MARK_NAME).touch()
    Store(root).ids()
    return Store(root).take_notice()


@pytest.mark.parametrize("seed", range(6))
def test_noise_anywhere_loses_little_and_never_the_program(root, said, seed):
    spoil(root / NAME, 3, seed)
    line = mended(root)
    assert line.startswith(f"{NAME} was damaged: ")
    assert "\n" not in line
    assert (root / "damaged-1.db").exists()
    assert Store(root).take_notice() == ""
    n_left = sum(len(texts) for texts in found(root).values())
    assert n_left >= 100, "half of 200 messages, where a page of 20 or so is damaged"
    with closing(sqlite3.connect(root / NAME)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    made = journal(root)
    ask(made, Conversation(), "and on")
    assert made.close(PATIENCE_S) == ""


@pytest.mark.parametrize("seed", range(3))
def test_with_a_copy_nothing_is_lost_that_it_has(root, said, seed):
    Store(root).check_and_copy(1e9)
    texts = saved_talk(root, 1)
    content = bytearray((root / NAME).read_bytes())
    for page in random.Random(seed).sample(range(len(content) // PAGE), 4):
        content[page * PAGE : (page + 1) * PAGE] = os.urandom(PAGE)
    (root / NAME).write_bytes(content)
    mended(root)
    left = found(root)
    assert {one: left[one] for one in said} == said
    assert set(left) - set(said) <= {"000011"}
    assert set(left.get("000011", [])) <= set(texts)


@pytest.mark.parametrize("content", [b"", b"x", b"SQLite format 3\0", b"x" * 5000, None])
def test_a_database_that_is_gone_comes_from_the_copy(root, said, content):
    Store(root).check_and_copy(1e9)
    (root / NAME).unlink()
    if content is not None:
        (root / NAME).write_bytes(content)
    assert found(root) == said
    assert "200 more from a copy" in Store(root).take_notice()


def test_without_its_first_page_everything_else_is_read(root, said):
    with (root / NAME).open("r+b") as file:
        file.write(os.urandom(PAGE))
    assert found(root) == said
    assert "200 messages recovered" in Store(root).take_notice()


def test_a_conversation_that_went_on_another_way_is_not_mixed(root):
    made = journal(root)
    conversation = Conversation()
    for n in range(3):
        ask(made, conversation, f"question {n}")
        answer(made, conversation, f"answer {n}")
    assert made.wait_until_saved(PATIENCE_S)
    Store(root).check_and_copy(1e9)
    conversation.cut(2)
    ask(made, conversation, "another way")
    assert made.close(PATIENCE_S) == ""
    mended(root)
    assert texts_in(root) == ["question 0", "answer 0", "another way"]


def test_lost_messages_come_back_from_the_copy_into_their_places(root, said):
    Store(root).check_and_copy(1e9)
    with closing(sqlite3.connect(root / NAME)) as db, db:
        db.execute("DELETE FROM message WHERE conversation=1 AND place IN (3, 4)")
        db.execute("DELETE FROM conversation WHERE id=2")
    assert "2 more from a copy" in mended(root)
    assert found(root) == said
    assert Store(root).read("000002").conversation.system == "Be brief."


def test_a_deleted_conversation_does_not_come_back(root, said):
    for now_s in (1e9, 2e9):
        Store(root).check_and_copy(now_s)
    Store(root).delete(ID)
    (root / NAME).unlink()
    del said[ID]
    assert found(root) == said


def test_a_delete_leaves_the_copies_as_old_as_they_are(root, said):
    for now_s in (1e9, 2e9):
        Store(root).check_and_copy(now_s)
    os.utime(root / BACKUPS[0], (5e8, 5e8))
    (root / BACKUPS[1]).write_bytes(b"\xff" * 9000)
    Store(root).delete(ID)
    assert (root / BACKUPS[0]).stat().st_mtime == 5e8
    assert not (root / BACKUPS[1]).exists(), "a damaged copy may have its words"


def test_a_check_finds_damage_and_the_next_use_mends_it(root, said):
    content = bytearray((root / NAME).read_bytes())
    content[-PAGE:] = b"\xff" * PAGE
    (root / NAME).write_bytes(content)
    Store(root).check_and_copy(1e9)
    assert not (root / BACKUPS[0]).exists(), "no copy of what is damaged"
    assert (root / MARK_NAME).exists()
    assert len(found(root)) == 10
    assert Store(root).take_notice()
    assert not (root / MARK_NAME).exists()


def test_two_copies_are_kept_and_one_made_a_day(root, said):
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
    assert not [one.name for one in root.iterdir() if one.name.startswith("backup-new")]


def test_what_is_open_elsewhere_is_not_mended(root, said):
    opened = Store(root).open(ID)
    (root / MARK_NAME).touch()
    with pytest.raises(StoreError, match="is damaged and in use"):
        Store(root).ids()
    opened.open_conversation.close()
    assert len(Store(root).ids()) == 10


def test_damage_while_it_is_open_is_mended_by_the_next_change(root, said):
    made = journal(root)
    opened = Store(root).open(ID)
    made.resume(opened)
    assert made.wait_until_saved(PATIENCE_S)
    (root / MARK_NAME).touch()
    ask(made, opened.saved.conversation, "and now?")
    assert made.close(PATIENCE_S) == ""
    assert texts_in(root) == [*said[ID], "and now?"]
    assert Store(root).take_notice()


def test_a_conversation_lost_while_open_is_written_again(root, said):
    made = journal(root)
    opened = Store(root).open(ID)
    made.resume(opened)
    with closing(sqlite3.connect(root / NAME)) as db, db:
        db.execute("DELETE FROM conversation WHERE id=1")
        db.execute("DELETE FROM message WHERE conversation=1 AND place>3")
    ask(made, opened.saved.conversation, "and now?")
    assert made.close(PATIENCE_S) == ""
    found = Store(root).read(ID).conversation.messages
    assert [m.text for m in found] == [*said[ID][:4], *[""] * 16, "and now?"]


def test_a_full_disk_while_it_is_mended_changes_nothing(root, said, monkeypatch):
    (root / MARK_NAME).touch()
    content = (root / NAME).read_bytes()
    real = upkeep.open_file

    def small(path, *given):
        db = real(path, *given)
        if path.name == "mended.db":
            db.execute("PRAGMA max_page_count=15")
        return db

    monkeypatch.setattr(upkeep, "open_file", small)
    with pytest.raises(StoreError, match="the disk is full"):
        Store(root).ids()
    assert (root / NAME).read_bytes() == content
    monkeypatch.undo()
    assert found(root) == said


def test_the_index_of_words_is_made_again(root, said):
    mended(root)
    assert len(Store(root).search("question 7")) == 10
    assert Store(root).search("question 7")[0].snippet


@pytest.mark.parametrize("table", ["search_data", "search_idx"])
def test_a_damaged_index_of_words_costs_nothing_else(root, said, table):
    with closing(sqlite3.connect(root / NAME)) as db, db:
        db.execute(
            "UPDATE search_data SET block=zeroblob(40)"
            if table == "search_data"
            else f"DELETE FROM {table}"
        )
    made = journal(root)
    opened = Store(root).open(ID)
    made.resume(opened)
    ask(made, opened.saved.conversation, "and now?")
    with closing(
        Store(root).open("000002").open_conversation
    ):  # another conversation is open all the time
        assert made.close(PATIENCE_S) == ""
    assert len(Store(root).search("question 7")) == 10
    assert Store(root).search("and now?")
    assert found(root) == {**said, ID: [*said[ID], "and now?"]}
    assert not list(root.glob("damaged-*"))


def test_a_command_that_mends_says_so_and_the_next_chat_again(said, root, capsys, monkeypatch):
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


def test_any_command_ends_with_what_it_mended(said, root, capsys):
    (root / MARK_NAME).touch()

    def use_conversations():
        (root / NAME).write_bytes(b"x" * 5000)
        Store(root).ids()
        return exit_codes.OK

    assert guard(use_conversations) == exit_codes.OK
    assert "jalopy: conversations.db was damaged" in capsys.readouterr().err


async def test_a_chat_shows_what_an_earlier_command_mended(said, root, monkeypatch):
    (root / MARK_NAME).touch()
    (root / NAME).write_bytes(b"x" * 5000)
    Store(root).ids()
    notices.take_all()  # the command has said it
    monkeypatch.setattr(paths, "conversations_dir", lambda: root)
    async with chatting() as driver:
        await driver.note("conversations.db was damaged")
    assert Store(root).take_chat_notice() == ""
