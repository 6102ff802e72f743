"""Titles that a model writes for conversations while the engine is idle."""

from dataclasses import replace

import pytest

from app.backend.local.titles import MOST_COLUMNS, MOST_TOKENS, REQUEST, title_in
from app.conversations.store import Store
from app.program.settings import built_in_settings
from app.session.events import GenerationFinished, TitleWritten
from app.tui.chat_options import may_write_titles
from engine.prompt.thinking import ThinkingMode
from tests.app.backend.engine_driver import PATIENCE_S, Engine
from tests.app.chat_driver import chatting
from tests.app.fake_engine import Gate, Script


@pytest.fixture
def script() -> Script:
    return Script(replies=[["Lima", "."], ["Capital", " of", " Peru"], ["More", "."]])


@pytest.fixture
def engine(engine: Engine) -> Engine:
    engine.load()
    return engine


def ask(
    engine: Engine,
    text: str = "What is the capital of Peru? Please answer with one word, and no more than that.",
) -> None:
    engine.ask(text)
    engine.until(lambda: not engine.engine_thread.status.is_busy)


def test_a_title_does_not_change_the_conversation(engine: Engine) -> None:
    ask(engine)
    chat = engine.script.opened[-1].chats[-1]
    tokens_before = list(engine.session.tokens)
    messages = list(chat.messages)
    assert engine.engine_thread.write_title(engine.chat_session.answered_request(), "7")
    assert engine.wait_for(TitleWritten) == TitleWritten("7", "Capital of Peru")
    engine.idle()
    assert (engine.session.tokens, chat.messages, chat.thinking) == (
        tokens_before,
        messages,
        ThinkingMode(),
    )
    assert engine.session.samplings[-1].temperature == 0
    assert engine.engine_thread.status.context_used == len(tokens_before)
    assert engine.ask("And then?").figures.reused_tokens == len(tokens_before)


def test_a_request_cancels_the_title_at_once(engine: Engine, script: Script) -> None:
    ask(engine)
    tokens_before = list(engine.session.tokens)
    script.token_gate = gate = Gate()
    assert engine.engine_thread.write_title(engine.chat_session.answered_request(), "7")
    assert gate.waiting.wait(PATIENCE_S)
    assert not engine.engine_thread.status.is_busy
    # The gate stays closed, so only a cancel releases the engine.
    assert engine.chat_session.submit("And then?")
    engine.idle()
    gate.open()
    assert engine.wait_for(GenerationFinished).figures.reused_tokens == len(tokens_before)
    assert not [event for event in engine.messages if isinstance(event, TitleWritten)]


@pytest.mark.parametrize("why", ["empty", "slow", "full", "rewritten"])
def test_no_title_is_started_if_it_would_cost_too_much(
    engine: Engine, script: Script, why: str
) -> None:
    if why == "slow":
        script.seconds_per_token = 1.0
    if why != "empty":
        ask(engine)
    if why == "full":
        engine.session.n_ctx = engine.session.length + MOST_TOKENS + 2
    if why == "rewritten":  # as a template without thinking would do
        engine.session.tokens[-2] += 1
    n_replies = len(engine.session.samplings)
    assert engine.engine_thread.write_title(engine.chat_session.answered_request(), "7")
    engine.idle()
    assert len(engine.session.samplings) == n_replies
    assert not [event for event in engine.messages if isinstance(event, TitleWritten)]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ('"Capital of Peru."\n', "Capital of Peru"),
        ("Title: **Bread**\n\nThis is a title.", "Bread"),
        ("\n\n# Ein Garten", "Ein Garten"),
        ("\x1b[31mRed\x07 Alert", "␛[31mRed␇ Alert"),
        ("秘鲁的首都" * 20, "秘鲁的首都" * 4),
        ("word " * 30, " ".join(["word"] * 8)),
        ("", ""),
        ("...", ""),
        ("42", ""),
        ("<think>Let me see", ""),
        ("<think>\nWell.\n</think>\n\nLima", "Lima"),
    ],
)
def test_a_generated_title_becomes_one_clean_line(text: str, title: str) -> None:
    assert title_in(text) == title
    assert len(title) <= MOST_COLUMNS


def test_a_cut_title_ends_with_a_whole_word() -> None:
    assert title_in("How to bake good bre", is_whole=False) == "How to bake good"
    assert title_in("Bread\nThis tit", is_whole=False) == "Bread"


async def test_the_list_shows_the_generated_title(script: Script) -> None:
    async with chatting(script, title_pause_s=0.0, write_titles="on") as driver:
        await driver.ask(
            "What is the capital of Peru? Please answer with one word, and no more than that."
        )
        await driver.until(
            lambda: driver.chat.core.chat_session.journal.title == "Capital of Peru", "the title"
        )
        await driver.say("/title Peru")
        await driver.note("title: Peru")
        await driver.ask("And then, what else is there to see in that town? Tell me in one word.")
        await driver.until(lambda: driver.chat.core.chat_session.journal.wait_until_saved(1.0))
    assert [entry.title for entry in Store().entries()] == ["Peru"]
    assert REQUEST not in "".join(
        message.content for message in script.opened[-1].chats[-1].messages
    )


async def test_no_title_is_written_if_it_is_off(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.tui.chat_options.is_on_battery", lambda: True)
    may_write = {
        setting: may_write_titles(replace(built_in_settings(), write_titles=setting))
        for setting in ("on", "off", "auto")
    }
    assert may_write == {"on": True, "off": False, "auto": False}
    async with chatting(script, title_pause_s=0.0, write_titles="auto") as driver:
        await driver.ask("What is the capital of Peru?")
        await driver.ask("And then?")
        assert driver.chat.core.chat_session.conversation.messages[-1].text == "Capital of Peru"
