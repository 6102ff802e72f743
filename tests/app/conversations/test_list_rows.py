"""Rows of the list of conversations: parts of the past, and last exchanges."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.conversations.conversation import Conversation
from app.conversations.database import NAME
from app.conversations.last_exchange import MOST_CHARS, LastExchange
from app.conversations.list_rows import period_of
from app.conversations.store import Store
from engine.prompt.tools.calls import CallResult, ToolCall
from tests.app.conversations.talk import PATIENCE_S, answer, ask, journal, saved_talk


@pytest.mark.parametrize(
    ("day", "period"),
    [
        ("2026-11-28", "Today"),
        ("2026-11-29", "Today"),
        ("2026-11-27", "Yesterday"),
        ("2026-11-26", "Last 7 days"),
        ("2026-11-21", "Last 7 days"),
        ("2026-11-20", "November 2026"),
        ("2025-01-01", "January 2025"),
        ("", ""),
        ("some day", ""),
    ],
)
def test_days_are_grouped_by_parts_of_the_past(day: str, period: str) -> None:
    assert period_of(f"{day}T10:00:00+00:00", "2026-11-28T00:05:00+00:00") == period


def test_the_last_question_and_its_answer_are_found(tmp_path: Path) -> None:
    saved_talk(tmp_path, 2)
    expected = LastExchange("question 1 \N{SNOWMAN}", "answer 1, at some length")
    assert Store(tmp_path).last_exchanges(["000001", "000002"]) == {"000001": expected}


def test_an_unanswered_question_has_no_answer(tmp_path: Path) -> None:
    live_journal = journal(tmp_path)
    conversation = Conversation()
    ask(live_journal, conversation, "one")
    answer(live_journal, conversation, "One.")
    ask(live_journal, conversation, "two\x1b[2J" + MOST_CHARS * "x")
    assert live_journal.close(PATIENCE_S) == ""
    exchange = Store(tmp_path).last_exchanges(["000001"])["000001"]
    assert exchange.reply == ""
    assert exchange.question.startswith("two␛[2Jxx")
    assert len(exchange.question) <= MOST_CHARS


def test_results_of_tools_are_no_question(tmp_path: Path) -> None:
    live_journal = journal(tmp_path)
    conversation = Conversation()
    ask(live_journal, conversation, "what time?")
    reply = answer(live_journal, conversation, "")
    reply.calls = (ToolCall("clock", "{}", "1"),)
    conversation.add_results((CallResult("clock", "12:00", "1"),))
    live_journal.save_turn_end(conversation)
    answer(live_journal, conversation, "Noon.")
    assert live_journal.close(PATIENCE_S) == ""
    exchanges = Store(tmp_path).last_exchanges(["000001"])
    assert exchanges == {"000001": LastExchange("what time?", "Noon.")}


def test_damaged_rows_are_shown_as_nothing(tmp_path: Path) -> None:
    saved_talk(tmp_path, 1)
    with closing(sqlite3.connect(tmp_path / NAME)) as db, db:
        db.execute("UPDATE message SET text=?, more=?", (b"\xff\x00", json.dumps([1])))
    assert Store(tmp_path).last_exchanges(["000001"]) == {"000001": LastExchange()}
