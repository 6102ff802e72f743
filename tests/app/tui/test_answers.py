"""Several replies to one message, written together, of which the user chooses one."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.tui.screens.answers import AnswerColumn, AnswersScreen
from engine import Sampling
from engine.errors import MemoryPlanError
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
        await driver.say("/regen 5")
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


# ---- another model


async def test_another_model_answers_next_to_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    async with choosing(monkeypatch, answers("Two.", "Later.")) as driver:
        await driver.say("/regen other.gguf")
        columns = await shown(driver, 2)
        await driver.shows("Two.")
        rows = driver.screen_text().splitlines()
        assert any("1 model Q4_K_M" in row and "2 other Q4_K_M" in row for row in rows)
        assert any("Before." in row and "Two." in row for row in rows)
        assert len(columns) == 2
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.app.screen is driver.chat)
        assert said(driver) == ["hello", "Before."]
        await driver.shows("‹ 1/2 › · model Q4_K_M")
        first, other, again = driver.script.opened
        assert [first.name, other.name, again.name] == ["model", "other", "model"]
        assert (first.is_closed, other.is_closed, again.is_closed) == (True, True, False)
        assert driver.chat.core.chat_session.model is not None
        assert driver.chat.core.chat_session.model.name == "model"
        await driver.ask("and then?")
        assert said(driver)[-1] == "Later."
        assert len(driver.script.opened) == 3


async def test_the_answer_of_another_model_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    async with choosing(monkeypatch, answers("Two.", "Later.")) as driver:
        await driver.say("/regen other.gguf")
        await shown(driver, 2)
        await driver.pilot.press("2")
        await driver.until(lambda: said(driver) == ["hello", "Two."])
        await driver.shows("‹ 2/2 › · other Q4_K_M")
        await driver.ask("and then?")
        session = driver.script.opened[-1].sessions[0]
        assert "Two." in driver.script.opened[-1].tokenizer.decode(session.tokens)
        await driver.say("/branch 1")
        await driver.shows("‹ 1/2 › · model Q4_K_M")


async def test_esc_stops_the_other_model_and_keeps_its_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = answers("echo " * 99)
    async with choosing(monkeypatch, script) as driver:
        script.token_gate = gate = Gate()
        await driver.say("/regen other.gguf")
        await driver.until(
            lambda: "echo" in driver.screen_text() or gate.allow(1), "the reply begins"
        )
        await driver.pilot.press("escape")
        await shown(driver, 2)
        assert "stopped" in driver.screen_text()
        await driver.pilot.press("2")
        await driver.until(lambda: said(driver)[1].startswith("echo"))
        assert driver.script.opened[-1].name == "model"


async def test_esc_before_the_other_model_writes_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = answers("Two.")
    async with choosing(monkeypatch, script) as driver:
        script.prefill_gate = gate = Gate()
        await driver.say("/regen other.gguf")
        await driver.until(gate.waiting.is_set)
        await driver.pilot.press("escape")
        gate.open()
        await driver.note("stopped before the reply began; the conversation is as it was")
        assert said(driver) == ["hello", "Before."]
        assert driver.app.screen is driver.chat
        await driver.ask("and then?")
        assert driver.script.opened[-1].name == "model"


async def test_no_memory_for_the_other_model_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    script = answers("Two.", open_errors={"large.gguf": MemoryPlanError("it needs 9 GB of 4 GB")})
    async with choosing(monkeypatch, script) as driver:
        await driver.say("/regen large.gguf")
        await driver.note("it needs 9 GB of 4 GB (the conversation is as it was)")
        assert said(driver) == ["hello", "Before."]
        assert [model.name for model in script.opened] == ["model", "model"]
        await driver.ask("and then?")
        assert said(driver)[-1] == "Two."


async def test_models_that_cannot_be_compared_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    script = answers("Two.", missing={"nosuch.gguf"})
    async with choosing(monkeypatch, script) as driver:
        await driver.say("/regen nosuch.gguf")
        await driver.note("nosuch.gguf: no such file (check the path)")
        await driver.say("/regen model.gguf")
        await driver.note("model.gguf is the open model: /regen 2 writes two more answers")
        await driver.say("/new")
        await driver.say("/regen other.gguf")
        await driver.note("there is no answer to compare with yet")
        assert len(script.opened) == 1
