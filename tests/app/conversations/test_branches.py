"""Branches of a conversation: shown, deleted, saved, searched and exported."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest

from app.conversations import branches
from app.conversations.branch_rows import branch_of, row_of_branch
from app.conversations.branches import (
    branches_of,
    check_room,
    delete_branch,
    find_message,
    keep_as_alternatives,
    n_messages_of,
    other_branches,
    show_branch,
)
from app.conversations.conversation import (
    Branch,
    ChatMessage,
    Conversation,
    Ending,
    ReplyFigures,
    Role,
)
from app.conversations.database import BACKUPS, MARK_NAME, NAME
from app.conversations.export import to_json, to_markdown
from app.conversations.import_branches import LOST
from app.conversations.import_file import read_conversations
from app.conversations.journal import Journal, PartialReply
from app.conversations.message_row import UnsoundError
from app.conversations.store import Store, show_branch_with
from app.conversations.upkeep import check_and_copy
from app.program.refusals import Refusal
from app.reply.thinking import Thinking
from tests.app.conversations.talk import PATIENCE_S, answer, ask, journal

DAY = datetime(2026, 11, 21)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "state" / "conversations"


def texts(conversation: Conversation) -> list[str]:
    return [message.text for message in conversation.messages]


def marks(conversation: Conversation) -> list[str]:
    return [message.branch_mark for message in conversation.messages]


def edit(conversation: Conversation, index: int, text: str) -> None:
    """Replace a question as an edit does, without a reply."""
    replaced = conversation.cut(index)
    keep_as_alternatives(conversation.add_user(text), replaced)


def answer_again(conversation: Conversation, text: str) -> None:
    """Replace the last reply as answering again does."""
    reply = conversation.drop_reply()
    keep_as_alternatives(conversation.add_reply(text, Ending.COMPLETE, None), [reply])


def conversation_of(*said: str) -> Conversation:
    conversation = Conversation()
    for question, reply in zip(said[::2], said[1::2], strict=True):
        conversation.add_user(question)
        conversation.add_reply(reply, Ending.COMPLETE, None)
    return conversation


def branching() -> Conversation:
    """Return a conversation whose first question was edited, and whose last reply has two
    alternatives within the first branch."""
    conversation = conversation_of("one", "One.", "two", "Two.")
    answer_again(conversation, "Two, again.")
    edit(conversation, 0, "uno")
    conversation.add_reply("Uno.", Ending.COMPLETE, None)
    return conversation


def save(root: Path, conversation: Conversation) -> Journal:
    live_journal = journal(root)
    live_journal.save_turn_end(conversation)
    assert live_journal.wait_until_saved(PATIENCE_S)
    return live_journal


def read(root: Path) -> Conversation:
    return Store(root).read("000001").conversation


# ---- in memory


def test_an_edit_keeps_the_branch_it_replaces() -> None:
    conversation = branching()
    assert texts(conversation) == ["uno", "Uno."]
    assert marks(conversation) == ["‹ 2/2 ›", ""]
    show_branch(conversation, 0, 0)
    assert texts(conversation) == ["one", "One.", "two", "Two, again."]
    assert marks(conversation) == ["‹ 1/2 ›", "", "", "‹ 2/2 ›"]
    show_branch(conversation, 3, 0)
    assert texts(conversation)[-1] == "Two."
    show_branch(conversation, 0, 1)
    assert texts(conversation) == ["uno", "Uno."]
    show_branch(conversation, 0, 0)
    assert texts(conversation)[-1] == "Two."
    assert marks(conversation) == ["‹ 1/2 ›", "", "", "‹ 1/2 ›"]


def test_branches_keep_their_order() -> None:
    conversation = conversation_of("hello", "A")
    for text in "BCD":
        answer_again(conversation, text)
    for number in (2, 0, 3, 1):
        show_branch(conversation, 1, number)
        assert conversation.messages[1].text == "ABCD"[number]
        assert conversation.messages[1].branch_mark == f"‹ {number + 1}/4 ›"
    answer_again(conversation, "E")
    all_texts = [branch[0].text for branch in branches_of(conversation.messages[1:])]
    assert all_texts == list("ABCDE")
    assert conversation.messages[1].branch_mark == "‹ 5/5 ›"


def test_a_deleted_branch_shows_its_neighbour() -> None:
    conversation = branching()
    delete_branch(conversation, 0)
    assert texts(conversation) == ["one", "One.", "two", "Two, again."]
    assert marks(conversation) == ["", "", "", "‹ 2/2 ›"]
    show_branch(conversation, 3, 0)
    delete_branch(conversation, 3)
    assert texts(conversation)[-1] == "Two, again."
    assert marks(conversation) == [""] * 4
    with pytest.raises(Refusal, match="no other branch"):
        delete_branch(conversation, 3)


def test_an_unanswered_branch_goes_with_the_next_message() -> None:
    conversation = conversation_of("one", "One.")
    conversation.add_user("two")
    edit(conversation, 0, "uno")
    conversation.add_reply("Uno.", Ending.COMPLETE, None)
    show_branch(conversation, 0, 0)
    assert texts(conversation) == ["one", "One.", "two"]
    assert conversation.unanswered_message is conversation.messages[2]


def test_a_message_in_place_of_an_unanswered_one_keeps_branches() -> None:
    conversation = conversation_of("one", "One.")
    edit(conversation, 0, "uno")
    conversation.add_user("due")
    assert marks(conversation) == ["‹ 2/2 ›"]
    show_branch(conversation, 0, 0)
    assert texts(conversation) == ["one", "One."]


def test_a_branch_before_the_dropped_turns_is_in_the_context() -> None:
    conversation = branching()
    conversation.n_dropped = 2
    show_branch(conversation, 0, 0)
    assert conversation.n_dropped == 0
    conversation.n_dropped = 2
    show_branch(conversation, 3, 0)
    assert conversation.n_dropped == 2


def test_numbers_and_depths_of_branches_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branches, "MAX_BRANCHES", 3)
    monkeypatch.setattr(branches, "MAX_DEPTH", 2)
    conversation = conversation_of("one", "One.", "two", "Two.")
    check_room(conversation, 3)
    answer_again(conversation, "Two, again.")
    check_room(conversation, 3)
    with pytest.raises(Refusal, match="this message has 3 branches: delete"):
        check_room(conversation, 3, 2)
    answer_again(conversation, "Two, once more.")
    with pytest.raises(Refusal, match="this message has 3 branches: delete"):
        check_room(conversation, 3)
    edit(conversation, 2, "due")
    for refused in (check_room, lambda talk, index: show_branch(talk, index, 0)):
        with pytest.raises(Refusal, match="within branches 2 times"):
            refused(conversation, 0)


def test_other_branches_are_listed_with_those_within() -> None:
    conversation = branching()
    listed = [
        (other.index, other.number, other.n_branches, [message.text for message in other.messages])
        for other in other_branches(conversation.messages)
    ]
    assert listed == [
        (0, 1, 2, ["one", "One.", "two", "Two, again."]),
        (3, 1, 2, ["Two."]),
    ]
    assert n_messages_of(conversation.messages) == 7


# ---- on disk


def test_branches_are_saved_and_opened(root: Path) -> None:
    conversation = branching()
    live_journal = save(root, conversation)
    assert read(root) == conversation
    show_branch(conversation, 0, 0)
    live_journal.save_turn_end(conversation)
    assert live_journal.wait_until_saved(PATIENCE_S)
    assert read(root) == conversation
    show_branch(conversation, 3, 0)
    delete_branch(conversation, 3)
    live_journal.save_turn_end(conversation)
    assert live_journal.close(PATIENCE_S) == ""
    assert read(root) == conversation
    with closing(sqlite3.connect(root / NAME)) as db:
        assert db.execute("SELECT count(*) FROM branch").fetchone() == (1,)
        assert b"Two." not in db.execute("SELECT more FROM branch").fetchone()[0].encode()


def test_a_kill_while_answering_again_keeps_the_reply(root: Path) -> None:
    live_journal = journal(root)
    conversation = Conversation()
    ask(live_journal, conversation, "hello")
    answer(live_journal, conversation, "A long answer.")
    reply = conversation.drop_reply()
    live_journal.save_question(conversation, is_replacing=True)
    partial = PartialReply("Anot", alternatives=branches_of([reply]))
    live_journal.save_partial(conversation, partial)
    assert live_journal.wait_until_saved(PATIENCE_S)

    saved = read(root)
    assert texts(saved) == ["hello", "Anot"]
    assert saved.messages[1].ending is Ending.INTERRUPTED
    assert marks(saved) == ["", "‹ 2/2 ›"]
    show_branch(saved, 1, 0)
    assert texts(saved) == ["hello", "A long answer."]
    live_journal.close(PATIENCE_S)


def test_a_kill_before_the_first_piece_shows_the_old_reply(root: Path) -> None:
    live_journal = journal(root)
    conversation = Conversation()
    ask(live_journal, conversation, "hello")
    answer(live_journal, conversation, "A long answer.")
    partial = PartialReply("x", alternatives=branches_of([conversation.drop_reply()]))
    live_journal.save_partial(conversation, partial)
    assert live_journal.close(PATIENCE_S) == ""
    with closing(sqlite3.connect(root / NAME)) as db, db:
        db.execute("DELETE FROM piece")

    assert texts(read(root)) == ["hello", "A long answer."]
    store = Store(root)
    live_journal = Journal(store)
    live_journal.resume(store.open("000001"))
    assert live_journal.close(PATIENCE_S) == ""
    with closing(sqlite3.connect(root / NAME)) as db:
        assert db.execute("SELECT count(*) FROM message").fetchone() == (2,)
        assert db.execute("SELECT count(*) FROM branch").fetchone() == (0,)
    assert marks(read(root)) == ["", ""]


def test_search_and_list_know_branches(root: Path) -> None:
    save(root, branching()).close(PATIENCE_S)
    (entry,) = Store(root).search("two, AGAIN")
    assert entry.snippet.startswith("(in another branch) ")
    assert "Two, again." in entry.snippet
    assert (entry.n_messages, entry.n_branches) == (2, 1)
    assert Store(root).search("Uno.")[0].snippet == "Uno."
    assert Store(root).search("three") == []
    size = Store(root).entries()[0].text_bytes
    assert size > sum(len(text) for text in ("one", "One.", "two", "Two.", "Two, again.", "uno"))


def test_a_deleted_conversation_takes_its_branches_along(root: Path) -> None:
    save(root, branching()).close(PATIENCE_S)
    check_and_copy(root, 0.0)
    Store(root).delete("000001")
    for path in (root / NAME, root / BACKUPS[0]):
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT count(*) FROM branch").fetchone() == (0,)
        assert b"Two, again." not in path.read_bytes()


def test_damaged_branches_are_counted_and_the_rest_stays(root: Path) -> None:
    conversation = branching()
    save(root, conversation).close(PATIENCE_S)
    hostile = [
        (0, 5, "[]"), (0, 6, "{}"), (0, 7, '[{"role":"assistant","ending":"complete"}]'),
        (0, 8, '[{"role":"user","text":"x","branches":7}]'), (99, 0, "[]"), (-1, 0, "[]"),
        ("x", 0, "[]"), (1, 0, '[{"role":"assistant","ending":"never"}]'),
        (1, 1, '[{"role":"user","branches":' * 900),
    ]  # fmt: skip
    with closing(sqlite3.connect(root / NAME)) as db, db:
        for place, number, json_text in hostile:
            sql = "INSERT INTO branch(conversation, place, number, more) VALUES(1, ?, ?, ?)"
            db.execute(sql, (place, number, json_text))
    saved = Store(root).read("000001")
    assert saved.conversation == conversation
    assert saved.damage == "8 branches are missing (damaged)"


def test_deep_rows_are_refused() -> None:
    row = '[{"role":"user","text":"x"}]'
    for depth in range(2, 402):
        row = f'[{{"role":"user","text":"x","branches":[{row}]}}]'
        if depth <= branches.MAX_DEPTH:
            assert branch_of(row, Role.USER)[0].branch_mark == "‹ 1/2 ›"
        else:
            with pytest.raises(UnsoundError):
                branch_of(row, Role.USER)


def test_repair_keeps_branches(root: Path) -> None:
    conversation = branching()
    save(root, conversation).close(PATIENCE_S)
    (root / MARK_NAME).touch()
    assert read(root) == conversation
    check_and_copy(root, 0.0)
    (root / NAME).unlink()
    assert read(root) == conversation


def test_a_branch_is_restored_from_its_row() -> None:
    branch: Branch = tuple(conversation_of("one", "One.").messages)
    branch[1].ids = (1, 2)
    answered = Conversation(messages=[*branch])
    answer_again(answered, "Again.")
    branch = tuple(answered.messages)
    _, n_bytes, text, json_text = row_of_branch(branch)
    assert text == "one\n\nAgain.\n\nOne."
    assert n_bytes == len(text) + len(json_text)
    assert branch_of(json_text, Role.USER) == branch


# ---- exports


def test_markdown_has_other_branches_if_asked() -> None:
    conversation = branching()
    without = to_markdown(conversation, "", DAY)
    assert "## You ‹ 2/2 ›\n\nuno" in without
    assert "Two, again." not in without
    text = to_markdown(conversation, "", DAY, with_branches=True)
    assert "## Branch 1/2 from message 1\n\n### You\n\none" in text
    assert "### Model ‹ 2/2 ›\n\nTwo, again." in text
    assert text.rstrip().endswith("## Branch 1/2 from reply 2\n\n### Model\n\nTwo.")


def test_json_has_all_branches() -> None:
    values = json.loads(to_json(branching(), "", DAY))
    question, reply = values["messages"]
    assert (question["text"], question["n_older"]) == ("uno", 1)
    (other,) = question["others"]
    assert other["text"] == "one"
    assert [message["text"] for message in other["later"]] == ["One.", "two", "Two, again."]
    assert other["later"][2]["others"][0]["text"] == "Two."
    assert reply["others"] == []
    assert "n_older" not in reply


def test_a_message_knows_its_branch() -> None:
    assert ChatMessage(Role.USER, "x").branch_mark == ""


def deep() -> Conversation:
    """Return a conversation with branches from a question and a reply, within branches too."""
    conversation = branching()
    conversation.add_user("dos")
    conversation.add_reply("Dos.", Ending.STOPPED, ReplyFigures(3, 0.5, 12.0, 7, 0))
    answer_again(conversation, "Dos, otra vez.")
    show_branch(conversation, 0, 0)
    edit(conversation, 2, "three")
    conversation.add_reply("Three.", Ending.COMPLETE, None, Thinking("hm", 1, 0.1, True))
    show_branch(conversation, 2, 0)
    return conversation


def test_an_exported_tree_is_imported_whole(root: Path) -> None:
    conversation = deep()
    assert n_messages_of(conversation.messages) == 12
    exported = to_json(conversation, "m", DAY, with_thinking=True)
    [imported] = read_conversations(exported.encode())
    assert imported.left_out == {}
    assert imported.conversation.messages == conversation.messages
    assert to_json(imported.conversation, "m", DAY, with_thinking=True) == exported
    save(root, imported.conversation).close(PATIENCE_S)
    assert to_json(Store(root).read("000001").conversation, "m", DAY, True) == exported


def test_alternative_replies_of_older_exports_are_imported() -> None:
    reply = {"role": "assistant", "text": "Two.", "ending": "complete"}
    others = [{"text": "Two, again.", "ending": "stopped"}]
    messages = [{"role": "user", "text": "two"}, {**reply, "others": others}]
    file = json.dumps({"program": "jalopy", "messages": messages}).encode()
    [imported] = read_conversations(file)
    [branch] = imported.conversation.messages[1].alternatives
    assert [message.text for message in branch] == ["Two, again."]
    assert branch[0].ending is Ending.STOPPED


@pytest.mark.parametrize(
    "others",
    [
        3,
        ["x"],
        [{"role": "user", "text": "two"}],
        [{"role": "assistant", "text": 3, "ending": "complete"}],
        [{"role": "assistant", "text": "x", "ending": "no"}],
        [{"role": "assistant", "text": "x", "ending": "complete", "later": 1}],
        [{"role": "assistant", "text": "x", "ending": "complete", "later": [0] * 100_000}],
        [{"role": "assistant", "text": "x", "ending": "complete", "later": [{"text": None}]}],
    ],
)
def test_unsound_branches_of_an_export_are_counted(others: object) -> None:
    reply = {"role": "assistant", "text": "Two.", "ending": "complete", "others": others}
    messages = [{"role": "user", "text": "two"}, {**reply, "n_older": -1}]
    file = json.dumps({"program": "jalopy", "messages": messages}).encode()
    [imported] = read_conversations(file)
    assert texts(imported.conversation) == ["two", "Two."]
    assert imported.conversation.messages[1].alternatives == ()
    assert imported.left_out == {LOST: 1}


def test_branches_beyond_the_limits_of_an_export_are_counted() -> None:
    question: dict[str, object] = {"role": "user", "text": "q"}
    for _ in range(branches.MAX_DEPTH + 3):
        reply = {"role": "assistant", "text": "a", "ending": "complete"}
        later = {**question, "others": [{**question, "others": []}]}
        question = {"role": "user", "text": "q", "others": [{**question, "later": [reply, later]}]}
    wide = {"role": "user", "text": "q", "others": [{"role": "user", "text": "q"}] * 70}
    for message in (question, wide):
        file = json.dumps({"program": "jalopy", "messages": [message]}).encode()
        [imported] = read_conversations(file)
        check_room(imported.conversation, 0, n_new=0)
    assert imported.left_out == {LOST: 70 - 63}


@pytest.mark.parametrize(
    ("word", "shown", "index"),
    [
        ("UNO", ["uno", "Uno.", "dos", "Dos, otra vez."], 0),
        ("again", ["one", "One.", "two", "Two, again."], 3),
        ("three", ["one", "One.", "three", "Three."], 2),
        ("missing", ["one", "One.", "two", "Two, again."], None),
    ],
)
def test_the_branch_with_a_word_is_shown_and_saved(
    root: Path, word: str, shown: list[str], index: int | None
) -> None:
    save(root, deep()).close(PATIENCE_S)
    before = Store(root).read("000001").conversation
    opened = Store(root).open("000001")
    place = find_message(opened.saved.conversation.messages, word)
    show_branch_with(opened.saved, word)
    conversation = opened.saved.conversation
    assert texts(conversation) == shown
    assert (place.index if place else None) == index
    live_journal = journal(root)
    live_journal.resume(opened)
    assert live_journal.close(PATIENCE_S) == ""
    after = Store(root).read("000001").conversation
    assert after.messages == conversation.messages
    assert n_messages_of(after.messages) == n_messages_of(before.messages)


def test_branches_in_the_first_message_of_a_branch_are_counted() -> None:
    branch = {"role": "user", "text": "p", "others": [{"role": "user", "text": "o"}]}
    messages = [{"role": "user", "text": "q", "others": [branch]}]
    file = json.dumps({"program": "jalopy", "messages": messages}).encode()
    [imported] = read_conversations(file)
    assert n_messages_of(imported.conversation.messages) == 2
    assert imported.left_out == {LOST: 1}
