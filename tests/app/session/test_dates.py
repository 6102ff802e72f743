"""Tests of the date in the system prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from app.conversations.conversation import ASSISTANT, SYSTEM, USER, PromptMessage
from app.conversations.session_options import (
    SessionOptions,
    options_from_json,
    options_to_json,
)
from app.documents.text_file import attached
from app.program.settings import built_in_settings
from app.session.request import HELPFUL, date_to_name, dated, named_dates
from engine.prompt.chat_template import ChatTemplate
from tests.app.backend.engine_driver import Engine
from tests.app.fake_engine import Script

DAY = "2026-01-02"
SENTENCE = "Today is Friday, 2 January 2026."
QUESTION = PromptMessage(USER, "What day is it?")
BRIEF = PromptMessage(SYSTEM, "Be brief.")


def texts(*messages: PromptMessage, setting: str = "auto", has_own_date: bool = False) -> list[str]:
    named = named_dates(dated(messages, DAY), setting, has_own_date)
    return [message.text for message in named]


def test_the_date_is_part_of_the_system_prompt() -> None:
    assert texts(BRIEF, QUESTION) == [f"Be brief.\n\n{SENTENCE}", QUESTION.text]
    assert texts(QUESTION) == [f"{HELPFUL}\n\n{SENTENCE}", QUESTION.text]
    assert texts() == [f"{HELPFUL}\n\n{SENTENCE}"]


def test_the_setting_and_the_template_decide() -> None:
    assert texts(QUESTION, has_own_date=True) == [QUESTION.text]
    assert texts(BRIEF, QUESTION, has_own_date=True) == [BRIEF.text, QUESTION.text]
    assert texts(QUESTION, setting="on", has_own_date=True)[0].endswith(SENTENCE)
    assert texts(BRIEF, QUESTION, setting="off") == [BRIEF.text, QUESTION.text]
    assert dated((BRIEF, QUESTION), "") == (BRIEF, QUESTION)


def test_a_conversation_about_a_document_names_no_date() -> None:
    question = PromptMessage(USER, f"{attached('plan.txt', 'Buy nails.')} What is to buy?")
    assert texts(BRIEF, question) == [BRIEF.text, question.text]
    assert len(texts(QUESTION, PromptMessage(ASSISTANT, "Friday."), question)) == 4


@pytest.mark.parametrize(
    ("setting", "in_chat", "elsewhere"),
    [("auto", True, False), ("on", True, True), ("off", False, False)],
)
def test_other_commands_name_a_date_only_on_demand(
    setting: str, in_chat: bool, elsewhere: bool
) -> None:
    settings = replace(built_in_settings(), date_in_prompt=setting)
    assert bool(date_to_name(settings)) == in_chat
    assert bool(date_to_name(settings, is_chat=False)) == elsewhere


def test_templates_that_print_a_date_are_known() -> None:
    for source, names_date in (
        ("{{ strftime_now('%d %B %Y') }}{{ messages }}", True),
        ("{{ date_string }}{{ messages }}", True),
        ("{{ messages[0].content }}", False),
        (None, False),
    ):
        assert ChatTemplate(source).names_date == names_date


def test_the_date_is_saved_with_the_conversation() -> None:
    text = options_to_json(SessionOptions(date=DAY))
    assert options_from_json(text) == (SessionOptions(date=DAY), ())
    for value in ('{"date": "today"}', '{"date": 5}', '{"date": "2026-13-01"}'):
        assert options_from_json(value) == (SessionOptions(), ("date",))


class Chat(Engine):
    """Conversation whose days are scripted."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.day = DAY
        self.chat_session._today = lambda: self.day


@pytest.fixture
def chat() -> Iterator[Chat]:
    chat = Chat(Script(replies=[["One."], ["Two."], ["Three."]], names_date=False))
    chat.load()
    yield chat
    chat.close()


def system_of(chat: Chat) -> str:
    return str(chat.script.opened[0].chats[0].messages[0].content)


def test_an_open_conversation_keeps_its_date(chat: Chat) -> None:
    chat.ask("first")
    assert system_of(chat) == f"{HELPFUL}\n\n{SENTENCE}"
    chat.day = "2026-01-03"
    chat.ask("second")
    assert system_of(chat).endswith(SENTENCE)
    chat.chat_session.start_new(None)
    chat.ask("third")
    assert system_of(chat).endswith("Today is Saturday, 3 January 2026.")


def test_a_conversation_begins_with_its_first_message(chat: Chat) -> None:
    chat.chat_session.start_new(None)
    chat.day = "2026-01-03"
    chat.ask("after midnight")
    assert system_of(chat).endswith("Today is Saturday, 3 January 2026.")
