"""Pins, tags and summaries of saved conversations."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest

from app.cli.sessions import import_files
from app.conversations.conversation import Conversation, Summary
from app.conversations.database import BACKUPS, NAME
from app.conversations.export import to_json
from app.conversations.mark_rows import (
    MAX_TAGS,
    Marks,
    clean_tag,
    put_marks,
    sound_summaries,
    sound_tags,
)
from app.conversations.store import Store
from app.conversations.upkeep import repair
from app.program.refusals import Refusal
from app.session.commands import with_changed_tag
from tests.app.conversations.talk import PATIENCE_S, answer, ask, journal, saved_talk

ID = "000001"
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=timezone.utc)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "conversations"
    saved_talk(root)
    return root


@pytest.mark.parametrize(
    ("typed", "tag"),
    [("Work", "work"), ("#work", "work"), (" two words ", "two-words"), ("-old", "old"),
     ("caf\u00e9", "caf\u00e9"), ("#", ""), ("a" * 50, "a" * 30)],
)  # fmt: skip
def test_a_tag_is_one_word_in_small_letters(typed: str, tag: str) -> None:
    assert clean_tag(typed) == tag


def test_tags_are_added_and_removed() -> None:
    marks = with_changed_tag(with_changed_tag(Marks(), "work"), "Home")
    assert marks.tags == ("home", "work")
    assert with_changed_tag(marks, "work") == marks
    assert with_changed_tag(marks, "-work").tags == ("home",)
    with pytest.raises(Refusal, match="no tag other"):
        with_changed_tag(marks, "-other")
    with pytest.raises(Refusal, match="a tag is a word"):
        with_changed_tag(marks, "#")
    for n in range(MAX_TAGS - 2):
        marks = with_changed_tag(marks, f"t{n}")
    with pytest.raises(Refusal, match="at most"):
        with_changed_tag(marks, "more")


def test_pin_and_tags_are_saved_and_searched(root: Path) -> None:
    store = Store(root)
    store.change_marks(ID, put_marks(Marks(True, ("home", "work"))))
    (entry,) = store.entries()
    assert (entry.is_pinned, entry.tags) == (True, ("home", "work"))
    assert [hit.id for hit in store.search("#work")] == [ID]
    assert [hit.id for hit in store.search("#wo answer")] == [ID]
    assert store.search("#other") == []
    assert store.search("#work nowhere") == []
    store.change_marks(ID, put_marks(Marks()))
    assert store.search("#work") == []
    assert store.read(ID).marks == Marks()


def test_marks_and_summaries_survive_a_repair(root: Path) -> None:
    Store(root).change_marks(ID, put_marks(Marks(True, ("work",))))
    summary = summarized(root)
    Store(root).check_and_copy(NOW.timestamp())
    (root / NAME).write_bytes(b"damaged" * 1000)
    repair(root)
    saved = Store(root).read(ID)
    assert saved.marks == Marks(True, ("work",))
    assert saved.conversation.summaries == (summary,)


def summarized(root: Path) -> Summary:
    """Summarize the first turn of the conversation."""
    open_journal = journal(root)
    open_journal.resume(Store(root).open(ID))
    conversation = Store(root).read(ID).conversation
    conversation.summarize("They said hello.", 2)
    open_journal.save_context(conversation)
    assert not open_journal.close(PATIENCE_S)
    assert conversation.summary is not None
    return conversation.summary


def test_deleting_a_conversation_deletes_its_marks_everywhere(root: Path) -> None:
    Store(root).change_marks(ID, put_marks(Marks(True, ("work",))))
    summarized(root)
    Store(root).check_and_copy(NOW.timestamp())
    Store(root).delete(ID)
    for name in (NAME, BACKUPS[0]):
        with closing(sqlite3.connect(root / name)) as db:
            for table in ("tag", "pin", "summary"):
                assert db.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        assert b"They said hello" not in (root / name).read_bytes()


def test_an_export_brings_marks_and_summaries_back(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    Store(root).change_marks(ID, put_marks(Marks(True, ("work",))))
    summary = summarized(root)
    saved = Store(root).read(ID)
    exported = to_json(saved.conversation, "", NOW, True, saved.title, saved.marks)
    texts = [message.text for message in saved.conversation.messages]
    assert [message["text"] for message in json.loads(exported)["messages"]] == texts
    file = tmp_path / "talk.json"
    file.write_text(exported)
    import_files([str(file)])
    imported = Store().read(ID)
    assert imported.marks == Marks(True, ("work",))
    assert imported.conversation.summaries == (summary,)
    assert imported.conversation.n_dropped == 2


@pytest.mark.parametrize(
    "value",
    [None, 3, [3], [{"text": 3}], [{"text": "a", "n_messages": 2}],
     [{"text": "a", "n_messages": 3, "n_dropped_before": 0}],
     [{"text": "a", "n_messages": 8, "n_dropped_before": 0}],
     [{"text": "a", "n_messages": 2, "n_dropped_before": 2}],
     [{"text": " ", "n_messages": 2, "n_dropped_before": 0}],
     [{"text": "a", "n_messages": True, "n_dropped_before": 0}],
     [{"text": "a" * 70_000, "n_messages": 2, "n_dropped_before": 0}]],
)  # fmt: skip
def test_unsound_summaries_are_ignored(value: object) -> None:
    assert sound_summaries(value, 4) == ()


def test_unsound_tags_are_ignored() -> None:
    assert sound_tags(["Work", 3, "", "#", "work", None]) == ("work",)
    assert sound_tags("work") == ()


def test_a_summary_of_lost_messages_is_ignored(root: Path) -> None:
    summarized(root)
    with closing(sqlite3.connect(root / NAME)) as db, db:
        db.execute("UPDATE summary SET n_messages=40")
    assert Store(root).read(ID).conversation.summaries == ()


def test_a_branch_of_the_beginning_removes_the_summary(tmp_path: Path) -> None:
    open_journal = journal(tmp_path / "conversations")
    conversation = Conversation()
    for n in range(3):
        ask(open_journal, conversation, f"question {n}")
        answer(open_journal, conversation, f"answer {n}")
    conversation.summarize("Two answers.", 4)
    open_journal.save_context(conversation)
    conversation.cut(2)
    open_journal.save_turn_end(conversation)
    assert not open_journal.close(PATIENCE_S)
    saved = Store(tmp_path / "conversations").read(ID).conversation
    assert saved.summaries == ()
    assert len(saved.messages) == 2
