"""Databases and files of older versions of the program."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from app.conversations import database
from app.conversations.database import BACKUPS, MARK_NAME, NAME, VERSION
from app.conversations.document_list import list_documents
from app.conversations.drafts import save_drafts, take_drafts
from app.conversations.locks import StoreError
from app.conversations.mark_rows import Marks, put_marks
from app.conversations.older_files import LONG_NAME, REMOVED_NAME, VECTORS_NAME, vectors_path
from app.conversations.store import Store
from app.conversations.upkeep import check_and_copy
from app.program import paths
from tests.app.conversations.talk import saved_talk, texts_in

BEGAN = "2026-11-21T10:00:00+00:00"
LONG_DOCUMENTS = [["/a.pdf", "a.pdf", 12, 340, 5000], ["/b.txt", "b.txt", 0, 7, 20]]


MARKS = ("tag", "pin", "summary")
"""Tables that version 3 lacks."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state" / "conversations"


@pytest.fixture
def texts(root: Path) -> list[str]:
    """Texts of a conversation that version 1 saved, with a document list next to it."""
    texts = saved_talk(root)
    with closing(sqlite3.connect(root / NAME)) as db, db:
        for table in ("removed_document", "long_document", "draft", "branch", *MARKS):
            db.execute(f"DROP TABLE {table}")
        db.execute("PRAGMA user_version=1")
    marks = [f"key 1 {BEGAN}", "other 1 2020-01-01", "lost 7 None", "unsound", "x y z", 3]
    write_json(root / REMOVED_NAME, off=marks)
    unsound = [["a", "b", -1, 2, 3], 7, ["a"], ["a", "b", 1, 2, 1 << 60]]
    write_json(root / LONG_NAME, documents=[*LONG_DOCUMENTS, *unsound])
    return texts


def write_json(path: Path, **content: object) -> None:
    path.write_text(json.dumps({"version": 1, **content}))


def rows(root: Path, sql: str) -> Iterator[tuple[object, ...]]:
    with closing(sqlite3.connect(root / NAME)) as db:
        yield from db.execute(sql).fetchall()


def test_version_1_is_upgraded_with_its_document_list(root: Path, texts: list[str]) -> None:
    assert texts_in(root) == texts
    assert list(rows(root, "PRAGMA user_version")) == [(VERSION,)]
    assert list(rows(root, "SELECT * FROM removed_document")) == [(1, "key")]
    columns = "path, name, n_pages, n_lines, n_tokens"
    long_documents = list(rows(root, f"SELECT {columns} FROM long_document ORDER BY id"))
    assert long_documents == [tuple(row) for row in LONG_DOCUMENTS]
    assert (root / REMOVED_NAME).exists()
    assert (root / LONG_NAME).exists()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"version": 9}', b'{"version": 1, "off": 3}'])
def test_unsound_files_do_not_stop_the_upgrade(
    root: Path, texts: list[str], content: bytes
) -> None:
    for name in (REMOVED_NAME, LONG_NAME):
        (root / name).write_bytes(content)
    assert texts_in(root) == texts
    assert list(rows(root, "SELECT * FROM long_document")) == []


def test_version_1_is_read_if_it_cannot_be_upgraded(root: Path, texts: list[str]) -> None:
    with patch.object(database, "upgrade"):
        assert texts_in(root) == texts
        assert list_documents(Store(root)) == ()
        assert take_drafts(root) == []
        with pytest.raises(StoreError, match="cannot be upgraded now"):
            save_drafts(root, ["draft"])
    assert list(rows(root, "PRAGMA user_version")) == [(1,)]
    save_drafts(root, ["draft"])
    assert [draft.content for draft in take_drafts(root)] == ["draft"]


def test_a_failed_upgrade_changes_nothing(root: Path, texts: list[str]) -> None:
    broken = ("CREATE TABLE removed_document(x)", "CREATE TABLE conversation(x)")
    with patch.object(database, "DOCUMENT_TABLES", broken):
        assert texts_in(root) == texts
    assert list(rows(root, "PRAGMA user_version")) == [(1,)]
    assert texts_in(root) == texts
    assert list(rows(root, "SELECT * FROM removed_document")) == [(1, "key")]


def test_version_2_is_upgraded_with_its_alternative_replies(root: Path) -> None:
    texts = saved_talk(root)
    other = {"text": "Another answer.", "ending": "complete", "ids": [4, 5], "raw": None}
    with closing(sqlite3.connect(root / NAME)) as db, db:
        for table in ("branch", *MARKS):
            db.execute(f"DROP TABLE {table}")
        for place in (1, 3):
            (json_text,) = db.execute("SELECT more FROM message WHERE place=?", (place,)).fetchone()
            others = [other, other] if place == 1 else [{**other, "ending": "never"}]
            new_json = json.dumps(
                {**json.loads(json_text), "others": others}, separators=(",", ":")
            )
            db.execute("UPDATE message SET more=? WHERE place=?", (new_json, place))
        db.execute("PRAGMA user_version=2")

    with patch.object(database, "upgrade"):
        assert texts_in(root) == [*texts[:3], "", *texts[4:]]
        reply = Store(root).read("000001").conversation.messages[1]
        assert [branch[0].text for branch in reply.alternatives] == ["Another answer."] * 2
    assert texts_in(root) == [*texts[:3], "", *texts[4:]]
    reply = Store(root).read("000001").conversation.messages[1]
    assert reply.branch_mark == "‹ 1/3 ›"
    assert [branch[0].ids for branch in reply.alternatives] == [(4, 5)] * 2
    assert list(rows(root, "SELECT place FROM branch")) == [(1,), (1,)]
    assert list(rows(root, "PRAGMA user_version")) == [(VERSION,)]
    assert [entry.n_branches for entry in Store(root).search("another answer")] == [2]


def of_version_3(root: Path) -> list[str]:
    """Return the texts of a conversation that version 3 saved."""
    texts = saved_talk(root)
    with closing(sqlite3.connect(root / NAME)) as db, db:
        for table in MARKS:
            db.execute(f"DROP TABLE {table}")
        db.execute("PRAGMA user_version=3")
    return texts


def test_version_3_is_opened_and_takes_pins_tags_and_summaries(root: Path) -> None:
    texts = of_version_3(root)
    assert texts_in(root) == texts
    assert list(rows(root, "PRAGMA user_version")) == [(VERSION,)]
    Store(root).change_marks("000001", put_marks(Marks(True, ("work",))))
    assert Store(root).read("000001").marks == Marks(True, ("work",))


def test_version_3_is_read_if_it_cannot_be_upgraded(root: Path) -> None:
    texts = of_version_3(root)
    with patch.object(database, "upgrade"):
        assert texts_in(root) == texts
        assert Store(root).read("000001").marks == Marks()
        assert [hit.tags for hit in Store(root).search("")] == [()]
        Store(root).change_marks("000001", put_marks(Marks(True)))
    assert list(rows(root, "PRAGMA user_version")) == [(3,)]


def test_a_copy_of_version_1_still_repairs(root: Path, texts: list[str]) -> None:
    with patch.object(database, "upgrade"):
        check_and_copy(root, 0.0)
    (root / NAME).unlink()
    assert (root / BACKUPS[0]).exists()
    assert texts_in(root) == texts


def test_repair_keeps_the_document_list_and_drafts(root: Path, texts: list[str]) -> None:
    save_drafts(root, ["draft"])
    (root / MARK_NAME).touch()
    assert texts_in(root) == texts
    assert list(rows(root, "SELECT * FROM removed_document")) == [(1, "key")]
    assert len(list(rows(root, "SELECT * FROM long_document"))) == 2
    assert [draft.content for draft in take_drafts(root)] == ["draft"]


def test_a_lost_first_page_costs_no_message(root: Path, texts: list[str]) -> None:
    assert texts_in(root) == texts
    check_and_copy(root, 0.0)
    content = bytearray((root / NAME).read_bytes())
    content[:4096] = bytes(4096)
    (root / NAME).write_bytes(content)
    (root / f"{NAME}-wal").unlink(missing_ok=True)
    assert texts_in(root) == texts
    assert list(rows(root, "SELECT * FROM removed_document")) == [(1, "key")]
    assert len(list(rows(root, "SELECT * FROM long_document"))) == 2
    assert take_drafts(root) == []


def test_copies_have_the_document_list_but_no_drafts(root: Path, texts: list[str]) -> None:
    assert texts_in(root) == texts
    save_drafts(root, ["a draft to forget"])
    check_and_copy(root, 0.0)
    assert b"a draft to forget" not in (root / BACKUPS[0]).read_bytes()
    (root / NAME).unlink()
    assert texts_in(root) == texts
    assert list(rows(root, "SELECT * FROM removed_document")) == [(1, "key")]
    assert len(list(rows(root, "SELECT * FROM long_document"))) == 2


def test_a_deleted_conversation_takes_its_rows_along(root: Path, texts: list[str]) -> None:
    assert texts_in(root) == texts
    Store(root).delete("000001")
    assert list(rows(root, "SELECT * FROM removed_document")) == []


def test_vectors_move_to_the_cache_once(root: Path) -> None:
    root.mkdir(parents=True)
    (root / VECTORS_NAME).write_bytes(b"vectors")
    path = vectors_path(root)
    assert path is not None
    assert path == paths.vectors_file()
    assert path.read_bytes() == b"vectors"
    (root / VECTORS_NAME).write_bytes(b"other")
    assert vectors_path(root) == path
    assert path.read_bytes() == b"vectors"
    assert os.stat(path.parent).st_mode & 0o77 == 0
