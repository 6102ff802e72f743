"""Database of conversations: everything saved is restored, and files of others are not trusted."""

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from app.conversations import database, locks, store
from app.conversations.conversation import ChatMessage, Conversation, Ending, Role
from app.conversations.database import BACKUPS, NAME, connect
from app.conversations.journal import PartialReply
from app.conversations.locks import LOCK_NAME, StoreError
from app.conversations.message_row import UnsoundError, message_of, row_of
from app.conversations.store import Store, snippet_of, title_of
from app.text.guesses import GuessFigures
from app.tui.chat import draft as drafts
from tests.app.conversations.talk import (
    FIGURES,
    PATIENCE_S,
    answer,
    ask,
    journal,
    saved_talk,
    texts_in,
)

ID = "000001"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state" / "conversations"


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    live_journal = tmp_path_factory.mktemp("talk") / "conversations"
    return live_journal, saved_talk(live_journal)


@pytest.fixture
def saved_texts(root, talk):
    live_journal, texts = talk
    shutil.copytree(live_journal, root)
    return list(texts)


def change(root, sql, *values):
    """Change the database with SQL, as somebody who edits the file would."""
    with closing(sqlite3.connect(root / NAME)) as db, db:
        db.execute(sql, values)


def test_a_conversation_is_restored_whole(root, saved_texts):
    saved = Store(root).read(ID)
    conversation = saved.conversation
    assert conversation.system == "Be brief."
    assert [m.text for m in conversation.messages] == saved_texts
    reply = conversation.messages[1]
    assert (reply.ids, reply.raw) == ((7, 8, 9), "<think>hm</think>answer 0, at some length")
    assert reply.figures == FIGURES
    assert (reply.thinking.text, reply.thinking.is_closed) == ("hm", True)
    assert (saved.model, saved.model_path, saved.title) == (
        "tiny Q4_K_M",
        "/models/tiny.gguf",
        "question 0 ☃",
    )
    [entry] = Store(root).entries()
    assert (entry.n_messages, entry.tokens, entry.title) == (6, 9, saved.title)


def test_files_are_readable_by_their_owner_only(root, saved_texts):
    live_journal = journal(root)
    opened = Store(root).open(ID)
    live_journal.resume(opened)
    ask(live_journal, opened.saved.conversation, "more")
    assert live_journal.wait_until_saved(PATIENCE_S)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in root.iterdir()}
    assert modes == dict.fromkeys((NAME, f"{NAME}-wal", f"{NAME}-shm", LOCK_NAME), 0o600)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert live_journal.close(PATIENCE_S) == ""
    (root / NAME).chmod(0o644)
    assert texts_in(root)[:-1] == saved_texts
    assert stat.S_IMODE((root / NAME).stat().st_mode) == 0o600


def test_an_interrupted_reply_is_saved_up_to_its_last_token(root):
    live_journal = journal(root)
    conversation = Conversation()
    ask(live_journal, conversation, "why?")
    for text, ids in (("Be", (1,)), ("Because", (1, 2))):
        live_journal.save_partial(conversation, PartialReply(text, "hm", ids, text))
    assert live_journal.close(PATIENCE_S) == ""
    for _ in range(2):  # when it is read, and when it is resumed
        reply = Store(root).read(ID).conversation.messages[-1]
        assert (reply.text, reply.ids, reply.raw, reply.ending) == (
            "Because",
            (1, 2),
            "Because",
            Ending.INTERRUPTED,
        )
        assert reply.thinking.text == "hm"
        live_journal = journal(root)
        opened = Store(root).open(ID)
        live_journal.resume(opened)
        assert live_journal.close(PATIENCE_S) == ""
    live_journal = journal(root)
    opened = Store(root).open(ID)
    live_journal.resume(opened)
    ask(live_journal, opened.saved.conversation, "and?")
    assert live_journal.close(PATIENCE_S) == ""
    assert texts_in(root) == ["why?", "Because", "and?"]


def test_other_processes_can_read_a_partial_message(root):
    live_journal = journal(root)
    conversation = Conversation()
    ask(live_journal, conversation, "why?")
    live_journal.save_partial(conversation, PartialReply("Bec", "", (1,), "Bec"))
    assert live_journal.wait_until_saved(PATIENCE_S)
    assert texts_in(root) == ["why?", "Bec"]
    assert live_journal.close(PATIENCE_S) == ""


def test_an_edit_replaces_all_later_messages(root):
    live_journal = journal(root)
    conversation = Conversation()
    for n in range(3):
        ask(live_journal, conversation, f"question {n}")
        answer(live_journal, conversation, f"dance-{n}")
    conversation.cut(2)
    ask(live_journal, conversation, "instead")
    assert live_journal.wait_until_saved(PATIENCE_S)
    assert texts_in(root) == ["question 0", "dance-0", "instead"]
    assert [entry.id for entry in Store(root).search("instead")] == [ID]
    assert Store(root).search("dance-2") == []
    assert live_journal.close(PATIENCE_S) == ""


@pytest.mark.parametrize("fts", [True, False])
def test_words_are_found_in_titles_and_texts(root, monkeypatch, fts):
    if not fts:
        monkeypatch.setattr(
            database, "_SEARCH", "CREATE VIRTUAL TABLE search USING no_such_module()"
        )
    texts = [
        "Ein Zebra säuft Wasser an der Straße",
        "斑马有条纹",
        'say "hello world" AND NEAR(x)',
        "one two",
    ]
    for text in texts:
        live_journal = journal(root)
        conversation = Conversation("A secret of the system." if text == "one two" else None)
        ask(live_journal, conversation, f"about {texts.index(text)}")
        answer(live_journal, conversation, f"first line\n\x1b[2J{text}")
        assert live_journal.close(PATIENCE_S) == ""
    with closing(connect(root)) as db:
        assert database.can_search(db) == fts

    def search(query):
        return [int(entry.id) - 1 for entry in Store(root).search(query)]

    for query, hits in {
        "ebra": [0], "ZEBRA wasser": [0], "SÄUFT": [0], "有条": [1], "斑马有": [1], '"hello world"': [2],
        '"hello': [2],
        "straße": [0], "NEAR(x)": [2], "wo": [3, 2], "absent": [], "zebra absent": [],
        "about zebra": [0],
        "secret": [3], "": [3, 2, 1, 0], "tiny first": [3, 2, 1, 0], "2026-11 'or'1'": [],
    }.items():  # fmt: skip
        assert search(query) == hits, query
    [hit] = Store(root).search("zebra")
    assert "Ein Zebra säuft" in hit.snippet
    assert hit.snippet.isprintable()
    assert Store(root).search("about")[0].snippet == ""


@pytest.mark.parametrize("word", ["w070", "070", "w000", "w139", "nothing"])
def test_a_snippet_has_whole_words(word: str) -> None:
    words = [f"w{number:03}" for number in range(140)]
    snippet = snippet_of(" ".join(words), word)
    assert word in snippet or word == "nothing"
    assert set(snippet.split()) <= set(words)


def test_a_snippet_of_a_long_word_shows_the_match() -> None:
    assert "b" in snippet_of("a" * 100 + "b" + "a" * 300, "b")


def test_a_deleted_conversation_leaves_no_text_on_disk(root):
    for word in ("krokodil", "elefant"):
        live_journal = journal(root)
        conversation = Conversation()
        ask(live_journal, conversation, f"ein {word}")
        answer(live_journal, conversation, f"{word} " * 3000)
        assert live_journal.close(PATIENCE_S) == ""
        Store(root).check_and_copy(2e9 if word == "krokodil" else 3e9)
    assert all((root / name).exists() for name in BACKUPS)
    open_conversation = (
        Store(root).open("000002").open_conversation
    )  # keeps the write-ahead log in use
    Store(root).delete(ID)
    open_conversation.close()
    for path in root.iterdir():
        content = path.read_bytes().lower()
        assert b"krokodil" not in content, path
        assert b"rokodi" not in content, path
    assert [entry.id for entry in Store(root).search("elefant")] == ["000002"]


def test_a_second_opener_gets_a_copy_until_the_first_closes(root, saved_texts):
    first = Store(root).open(ID)
    second = Store(root).open(ID)
    assert second.open_conversation is None
    assert f"in use by another jalopy (process {os.getpid()}, since " in second.notice
    assert second.notice.endswith("), so this is a copy")
    assert [m.text for m in second.saved.conversation.messages] == saved_texts
    for forbidden in (lambda: Store(root).delete(ID), lambda: Store(root).rename(ID, "x")):
        with pytest.raises(StoreError, match="in use"):
            forbidden()
    first.open_conversation.close()
    third = Store(root).open(ID)
    assert third.open_conversation is not None
    third.open_conversation.close()


def test_the_lock_of_a_killed_process_is_gone(root, saved_texts):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom app.conversations.store import Store\n"
        "o = Store(Path(sys.argv[1])).open('000001')\nprint(bool(o.open_conversation), "
        "flush=True)\ntime.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "True\n"
    assert f"(process {holder.pid}, since " in Store(root).open(ID).obstacle
    holder.kill()
    holder.wait()
    holder.stdout.close()
    again = Store(root).open(ID)
    assert again.open_conversation is not None
    again.open_conversation.close()


@pytest.mark.parametrize(
    "written", [b"\0" * 64, b"-1 x".ljust(64), b"\xff" * 64, b"99999999999 2026-11-21".ljust(64)]
)
def test_an_unknown_lock_holder_is_not_named(root, saved_texts, written):
    first = Store(root).open(ID)
    with (root / LOCK_NAME).open("r+b") as file:
        file.seek(64)
        file.write(written)
    assert Store(root).open(ID).obstacle == locks.IN_USE
    first.open_conversation.close()


def test_two_conversations_are_written_at_once(root):
    journals = [journal(root) for _ in range(4)]
    conversations = [Conversation() for _ in journals]
    for n in range(5):
        for live_journal, conversation in zip(journals, conversations, strict=True):
            ask(live_journal, conversation, f"question {n}")
            answer(live_journal, conversation, f"answer {n}")
    assert [live_journal.close(PATIENCE_S) for live_journal in journals] == [""] * 4
    assert [len(texts_in(root, live_journal)) for live_journal in Store(root).ids()] == [10] * 4


def test_an_unfinished_edit_and_queued_messages_are_restored(root):
    live_journal = journal(root)
    conversation = Conversation()
    ask(live_journal, conversation, "question")
    answer(live_journal, conversation, "answer")
    live_journal.save_queue(conversation, ["later", "last"])
    conversation.cut(0)
    conversation.add_user("tried")
    live_journal.save_question(conversation, is_replacing=True)
    assert live_journal.wait_until_saved(PATIENCE_S)
    saved = Store(root).read(ID)
    assert (saved.unanswered_replacement, saved.queued_texts, len(saved.conversation.messages)) == (
        "tried",
        ["later", "last"],
        2,
    )
    assert saved.text_to_resend == "tried\n\nlater\n\nlast"
    live_journal.close(PATIENCE_S)


# ---- files of others


def test_guesses_are_restored_or_unknown_in_older_rows(root, saved_texts):
    guesses = (GuessFigures("conversation", 60, 45), GuessFigures("predictor", 8, 0))
    figures = replace(FIGURES, guessed_tokens=45, guesses=guesses, guess_saved_s=-0.25)
    reply = ChatMessage(Role.ASSISTANT, "answer", figures=figures)
    role, _, _, text, json_text = row_of(reply)
    assert message_of(role, text, json_text).figures == figures
    values = json.loads(json_text)
    values["figures"]["guesses"][0]["kind"] = "of a later version"
    assert message_of(role, text, json.dumps(values)).figures.guesses == guesses[1:]
    del values["figures"]["guesses"], values["figures"]["guess_saved_s"]
    older = message_of(role, text, json.dumps(values)).figures
    assert older == replace(FIGURES, guessed_tokens=45)


def test_hostile_text_is_harmless_when_restored(root):
    live_journal = journal(root)
    conversation = Conversation("\x1b]0;pwned\x07")
    ask(live_journal, conversation, "\x1b[2J\u202e\ud800 text")
    assert live_journal.close(PATIENCE_S) == ""
    saved = Store(root).read(ID)
    text = saved.conversation.messages[0].text + saved.title + saved.conversation.system
    assert not any(ord(c) < 0x20 or c in "\ud800\x9b" for c in text)
    assert "\u202e" in text, "the screen replaces this character, not the store"
    assert "text" in saved.conversation.messages[0].text
    assert "pwned" in saved.conversation.system


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("more", value) for value in (None, 5, "", "[", "[]", "[" * 100_000, '{"figures": 5}',
                                        '{"ids": ["1"]}')),
        *(("more", json.dumps(value)) for value in ({"ending": "sideways"},
                                                    {"ending": "stopped", "thinking": []})),
        *(("more", json.dumps({"ending": "complete", "figures": value}))
          for value in ({"guesses": 5}, {"guesses": [5]}, {"guess_saved_s": "1"},
                        {"guesses": [{"kind": "earlier", "tried": -1}]},
                        {"guess_saved_s": 1e999}, {"guesses": [{"kind": []}]})),
        *(("more", json.dumps({"ending": "complete", "calls": value}))
          for value in (5, [5], [{"name": "a b"}])),
        ("text", None), ("text", b"\xff"), ("role", "robot"), ("role", "user"), ("role", 1 << 60),
    ],
)  # fmt: skip
def test_an_invalid_row_is_a_missing_message(root, saved_texts, column, value):
    change(root, f"UPDATE message SET {column}=? WHERE place=1", value)
    opened = Store(root).open(ID)
    messages = opened.saved.conversation.messages
    assert [m.text for m in messages] == [saved_texts[0], "", *saved_texts[2:]]
    assert [m.is_missing for m in messages] == [n == 1 for n in range(6)]
    assert opened.saved.conversation.n_dropped == 2
    assert opened.notice == "1 message is missing (damaged); the model continues after the last one"
    live_journal = journal(root)
    live_journal.resume(opened)
    ask(live_journal, opened.saved.conversation, "go on")
    assert live_journal.close(PATIENCE_S) == ""
    assert texts_in(root) == [saved_texts[0], "", *saved_texts[2:], "go on"]


def test_missing_rows_are_missing_messages(root, saved_texts):
    change(root, "DELETE FROM message WHERE place IN (0, 3)")
    messages = Store(root).read(ID).conversation.messages
    assert [m.text for m in messages] == ["", *saved_texts[1:3], "", *saved_texts[4:]]
    assert [m.role.value for m in messages] == ["user", "assistant"] * 3
    change(root, "DELETE FROM message WHERE place>0")
    change(root, "UPDATE message SET text=NULL")
    assert Store(root).read(ID).conversation.is_empty


@pytest.mark.parametrize(
    "value", [None, b"\xff\xfe", 5, -1, 1e300, "\x1b[2J", "[", "[5]", "x" * 10_000, 1 << 62]
)
def test_odd_values_of_a_conversation_are_ignored(root, saved_texts, value):
    columns = [
        "title",
        "system",
        "began",
        "changed",
        "model",
        "model_path",
        "used",
        "n_dropped",
        "unsent",
        "waiting",
    ]
    change(root, f"UPDATE conversation SET {'=?, '.join(columns)}=?", *[value] * len(columns))
    saved = Store(root).read(ID)
    [entry] = Store(root).entries()
    assert [m.text for m in saved.conversation.messages] == saved_texts
    assert 0 <= saved.conversation.n_dropped <= 6
    for line in (
        saved.title,
        saved.began,
        saved.changed,
        saved.model,
        entry.title,
        entry.changed,
        entry.model,
    ):
        assert line.isprintable()
        assert len(line) <= 120
    Store(root).search("question x")


@pytest.mark.parametrize("value", [1e300, float("inf"), -5, "x", b"\xff", 1 << 62])
def test_odd_counts_are_bounded(root, saved_texts, value):
    change(root, "UPDATE message SET tokens=?, n_bytes=?", value, value)
    [entry] = Store(root).entries()
    assert 0 <= entry.tokens <= 1 << 53
    assert 0 <= entry.text_bytes <= 1 << 53


@pytest.mark.parametrize("position", [200_000, 1 << 60])
def test_a_message_with_a_huge_position_is_refused(root, saved_texts, position):
    change(root, "UPDATE message SET place=? WHERE place=5", position)
    with pytest.raises(StoreError, match="larger than 64 MiB"):
        Store(root).read(ID)
    assert len(Store(root).entries()) == 1


def test_a_conversation_beyond_the_size_limit_is_not_read(root, saved_texts, monkeypatch):
    monkeypatch.setattr(store, "MOST_CONVERSATION_BYTES", 100)
    with pytest.raises(StoreError, match="larger than"):
        Store(root).read(ID)


def test_an_oversized_conversation_can_still_be_deleted(root, saved_texts, monkeypatch):
    monkeypatch.setattr(store, "MOST_CONVERSATION_BYTES", 100)
    with pytest.raises(StoreError, match="is full"):
        Store(root).rename(ID, "Too long")
    Store(root).delete(ID)
    assert Store(root).entries() == []
    with pytest.raises(StoreError, match="no such conversation"):
        Store(root).delete(ID)


def test_an_id_with_too_many_digits_is_ignored(root, saved_texts):
    change(root, "INSERT INTO conversation(id, title, n_dropped) VALUES(?, 'x', 0)", 10**12)
    assert Store(root).ids() == [entry.id for entry in Store(root).entries()] == [ID]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no such limit")
def test_a_row_beyond_the_size_limit_is_not_read(root, saved_texts, monkeypatch):
    monkeypatch.setattr(database, "MOST_ROW_BYTES", 100_000)
    change(root, "UPDATE message SET text=zeroblob(?)", database.MOST_ROW_BYTES + 1)
    with pytest.raises(StoreError, match="too large"):
        Store(root).read(ID)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TRIGGER t AFTER INSERT ON message BEGIN DELETE FROM conversation; END",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TABLE other(x)",
        "ALTER TABLE message ADD COLUMN x",
        "DROP TABLE piece",
        "PRAGMA user_version=0",
    ],
)
def test_another_schema_is_refused_and_left_unchanged(root, saved_texts, sql):
    change(root, sql)
    content = (root / NAME).read_bytes()
    for work in (
        lambda: Store(root).ids(),
        lambda: Store(root).read(ID),
        lambda: Store(root).open(ID),
    ):
        with pytest.raises(StoreError, match="not a database of conversations"):
            work()
    live_journal = journal(root)
    ask(live_journal, Conversation(), "hello")
    assert "not a database of conversations" in live_journal.close(PATIENCE_S)
    assert (root / NAME).read_bytes() == content


def test_a_newer_version_is_refused_and_left_unchanged(root, saved_texts):
    change(root, f"PRAGMA user_version={database.VERSION + 1}")
    content = (root / NAME).read_bytes()
    with pytest.raises(StoreError, match="newer version"):
        Store(root).open(ID)
    assert (root / NAME).read_bytes() == content


@pytest.mark.parametrize("spoil", ["link", "pipe", "directory", "another user"])
def test_a_link_special_file_or_foreign_file_is_refused(
    root, saved_texts, spoil, tmp_path, monkeypatch
):
    path = root / NAME
    path.rename(tmp_path / "elsewhere")
    if spoil == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif spoil == "pipe":
        os.mkfifo(path)
    elif spoil == "directory":
        path.mkdir()
    else:
        (tmp_path / "elsewhere").rename(path)
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StoreError, match=r"not a regular file|another user"):
        Store(root).read(ID)


@pytest.mark.parametrize("name", ["", "1", "../000001", "000001/..", "x" * 6, "0" * 13])
def test_an_invalid_id_reaches_no_file(root, saved_texts, name):
    for work in (Store(root).read, Store(root).open, Store(root).delete, Store(root).segments):
        with pytest.raises(StoreError, match="no such conversation"):
            work(name)


def test_hostile_segment_names_reach_no_other_file(root, saved_texts):
    good = f"{0:032}-1-{1:032}.kv"
    for directory, name in (
        ("..", good),
        ("a/b", good),
        ("", good),
        ("k", "../x"),
        ("k", "x.kv"),
        ("k\0", good),
        ("k", good),
    ):
        change(root, "INSERT INTO segment VALUES(1, ?, ?)", directory, name)
    assert [path.parts[-2:] for path in Store(root).segments(ID)] == [("k", good)]


# ---- sizes


def test_the_head_of_a_conversation_reads_no_messages(root, saved_texts, monkeypatch):
    saved = Store(root).read(ID)
    monkeypatch.setattr(store, "_messages", None)
    head = Store(root).read_head(ID)
    assert head.title == saved.title
    assert (head.changed, head.model, head.model_path) == (
        saved.changed,
        saved.model,
        saved.model_path,
    )
    assert head.text_to_resend == saved.text_to_resend
    assert 0 < Store(root).n_tokens(ID) < 1000
    with pytest.raises(StoreError, match="no such conversation"):
        Store(root).read_head("000009")


def test_opening_reads_a_conversation_once(root, saved_texts, monkeypatch):
    reads = []
    read = Store.read
    monkeypatch.setattr(Store, "read", lambda store, id_: reads.append(id_) or read(store, id_))
    opened = Store(root).open(ID)
    assert reads == [ID]
    assert opened.open_conversation is not None
    opened.open_conversation.close()


def test_a_conversation_never_grows_too_large_to_be_read(root, monkeypatch):
    monkeypatch.setattr(store, "MOST_CONVERSATION_BYTES", 8 << 10)
    live_journal = journal(root)
    conversation = Conversation()
    while not live_journal.trouble:
        assert len(conversation.messages) < 200
        ask(live_journal, conversation, "question")
        answer(live_journal, conversation, "answer")
        live_journal.wait_until_saved(PATIENCE_S, waits_for_room=False)
    assert live_journal.trouble.startswith("the conversation is full")
    assert live_journal.close(PATIENCE_S) == live_journal.trouble
    texts = texts_in(root)
    assert len(texts) > 10
    assert texts == ["question", "answer"] * (len(texts) // 2) + ["question"] * (len(texts) % 2)


def test_a_title_is_the_text_typed_after_the_chips() -> None:
    file = drafts.write_chip(1, "a fan", "notes.md")
    paste = drafts.write_chip(2, "x\n" * 20)
    assert title_of(f"{file} {paste} what is it?\nSay.") == "what is it?"
    assert title_of(f"{file}\nwhat is it?") == "what is it?"
    assert title_of(f"Is {file} sound?").startswith("Is [file 1: notes.md")
    assert title_of(file).startswith("[file 1: notes.md")
    assert title_of("[file 1: no chip] x") == "[file 1: no chip] x"


def test_alternative_replies_of_version_2_are_read():
    reply = ChatMessage(Role.ASSISTANT, "One.", ids=(3,), raw="One.")
    role, _, _, text, fields_json = row_of(reply)
    assert message_of(role, text, fields_json) == reply
    deep = json.loads(fields_json)
    other = {**deep, "text": "Two."}
    deep["others"] = [{**other, "others": [other]}] * 20
    restored = message_of(role, text, json.dumps(deep)).alternatives
    assert [[message.text for message in branch] for branch in restored] == [["Two."]] * 8
    assert [branch[0].alternatives for branch in restored] == [()] * 8
    for damaged in ("Two.", [7], [{"ending": "never"}]):
        with pytest.raises(UnsoundError):
            message_of(role, text, json.dumps({**deep, "others": damaged}))
