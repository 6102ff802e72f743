"""Several replies to one message, written together, of which the user chooses one."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.tui.screens.answers import AnswerColumn, AnswersScreen
from engine import Sampling
from tests.app import chat_driver
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script
from tests.app.scenes import tokens

OPTIONS_FOR = chat_driver.options_for


@asynccontextmanager
async def choosing(
    monkeypatch: pytest.MonkeyPatch,
    script: Script,
    size: tuple[int, int] = (120, 24),
    temperature: float = 0.7,
) -> AsyncIterator[Driver]:
    """Run the chat with a message that has several different replies."""
    how = {"sampling": lambda chosen, model, mode: Sampling(temperature=temperature, seed=5)}
    monkeypatch.setattr(
        chat_driver, "options_for", lambda script: dataclasses.replace(OPTIONS_FOR(script), **how)
    )
    async with chatting(script, size=size) as driver:
        await driver.ask("hello")
        yield driver


def answers(*texts: str, **more: object) -> Script:
    return Script(replies=[tokens("Before."), *map(tokens, texts)], **more)  # type: ignore[arg-type]


def said(driver: Driver) -> list[str]:
    return [one.text for one in driver.chat.core.chat_session.conversation.messages]


async def shown(driver: Driver, n: int) -> list[AnswerColumn]:
    """Return the finished replies."""
    await driver.until(
        lambda: isinstance(driver.app.screen, AnswersScreen), "the answers are shown"
    )
    await driver.until(
        lambda: sum(one.has_ended for one in driver.app.screen.query(AnswerColumn)) == n,
        "they ended",
    )
    await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
    return list(driver.app.screen.query(AnswerColumn))


async def test_replies_appear_side_by_side_and_one_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with choosing(monkeypatch, answers("One [here](x).", "Two.", "Three.")) as driver:
        await driver.say("/regen 2")
        await shown(driver, 2)
        await driver.shows("Two.")
        rows = driver.screen_text().splitlines()
        assert any("One" in row and "Two." in row for row in rows)
        await driver.pilot.press("2")
        await driver.until(lambda: said(driver) == ["hello", "Two."])
        await driver.shows("/answers shows others")
        assert [view.text for view in driver.transcript.replies()] == ["Two."]
        seeds = [one.samplings[-1].seed for one in driver.script.opened[-1].sessions]
        assert seeds == [5, 6]
        assert [one.is_closed for one in driver.script.opened[-1].sessions] == [False, True]
        reply = driver.chat.core.chat_session.last_message
        assert reply is not None
        assert [one.text for (one,) in reply.alternatives] == ["Before.", "One [here](x)."]
        await driver.say("/answers")
        await shown(driver, 3)
        await driver.pilot.press("tab", "tab", "tab", "enter")
        await driver.until(lambda: said(driver) == ["hello", "Before."])
        await driver.ask("and then?")
        context = driver.script.opened[-1].tokenizer.decode(
            driver.script.opened[-1].sessions[0].tokens
        )
        assert "Before." in context
        assert "Two." not in context


async def test_esc_stops_all_replies_which_can_then_be_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = answers("alpha " * 99, "echo " * 99)
    async with choosing(monkeypatch, script, (60, 24)) as driver:
        script.token_gate = gate = Gate()
        await driver.say("/regen 2")
        await driver.until(gate.waiting.is_set)
        await driver.until(
            lambda: "echo" in driver.screen_text() or gate.allow(1), "both have begun"
        )
        rows = driver.screen_text().splitlines()
        assert not any("alpha" in row and "echo" in row for row in rows)  # one below the other
        await driver.pilot.press("escape")
        columns = await shown(driver, 2)
        assert len(columns) == 2
        assert "stopped" in driver.screen_text()
        await driver.pilot.press("2")
        await driver.until(lambda: said(driver)[1].startswith("echo"))
        await driver.shows("/continue resumes")


async def test_stopping_before_the_first_word_keeps_the_old_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = answers("One.", "Two.")
    async with choosing(monkeypatch, script) as driver:
        script.token_gate = gate = Gate()
        await driver.say("/regen 2")
        await driver.until(gate.waiting.is_set)
        await driver.pilot.press("escape")
        await driver.note("stopped before the reply began")
        assert said(driver) == ["hello", "Before."]
        assert driver.app.screen is driver.chat


async def test_requests_without_a_choice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with choosing(monkeypatch, answers("One."), temperature=0.0) as driver:
        for wanted in ("5", "x"):
            await driver.say(f"/regen {wanted}")
            await driver.until(lambda: not driver.prompt.submitted)
            assert driver.notes()[-1].startswith("/regen takes how many")
        await driver.say("/regen 2")
        await driver.note("at temperature 0 all answers are the same")
        assert said(driver) == ["hello", "Before."]


async def test_less_memory_allows_fewer_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    async with choosing(monkeypatch, answers("One.", "Two.", "Three.", most_sessions=2)) as driver:
        await driver.say("/regen 4")
        await shown(driver, 2)
        await driver.pilot.press("escape")
        await driver.note("answers written together: 2; for more,")
        driver.script.most_sessions = 1
        await driver.say("/regen 2")
        await driver.until(lambda: said(driver) == ["hello", "Three."])
        await driver.note("answers written together: 1; for more,")
        assert driver.app.screen is driver.chat
