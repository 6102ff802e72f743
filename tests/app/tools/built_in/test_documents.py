"""Tests of the search in the documents of saved conversations."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.conversations.conversation import Conversation
from app.conversations.store import Store
from app.documents.text_file import attached
from app.text.chips import NBSP
from app.tools.built_in.documents import search_documents
from app.tools.built_in.tool import ToolFailure
from app.tools.mcp.transport import StoppedError
from tests.app.conversations import talk

BOOK = "\n\n".join(f"Chapter {n}: a day at sea without wind or land." for n in range(200))
LANTERN = "The keeper lit the lantern at nine."


@pytest.fixture
def store(tmp_path: Path) -> Store:
    journal = talk.journal(tmp_path)
    for name, text in (("book.txt", f"{BOOK}\n\n{LANTERN}"), ("plan.txt", "Buy nails.")):
        conversation = Conversation()
        journal.begin()
        question = "what is this?"
        folded = f"[file{NBSP}1:{NBSP}{name}] {question}"
        conversation.add_user(f"{attached(name, text)} {question}", folded)
        journal.save_question(conversation, is_replacing=False)
        talk.answer(journal, conversation, "A text.")
    assert journal.close(talk.PATIENCE_S) == ""
    return Store(tmp_path)


def test_passages_come_with_name_and_place(store: Store) -> None:
    text = search_documents(store, "When was the lantern lit?", lambda: False)
    assert LANTERN in text
    assert "book.txt, lines" in text
    assert "nails" not in text
    assert len(text) < 7000


def test_a_search_without_a_match_says_so(store: Store, tmp_path: Path) -> None:
    for query in ("zebra", "?!"):
        with pytest.raises(ToolFailure):
            search_documents(store, query, lambda: False)
    with pytest.raises(ToolFailure, match="There are no documents yet"):
        search_documents(Store(tmp_path / "empty"), "lantern", lambda: False)


def test_a_search_can_be_stopped(store: Store) -> None:
    with pytest.raises(StoppedError):
        search_documents(store, "lantern", lambda: True)
