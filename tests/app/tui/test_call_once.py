"""Delayed calls happen once, even where the machine holds the process up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import textual.timer

import app
from app.tui.chat import draft_cost
from app.tui.textual_hacks import call_once
from tests.app.chat_driver import chatting
from tests.app.fake_engine import FakeClock

_DELAY_S = 0.001


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let more than the delay pass between any two looks at the clock that a timer takes."""
    clock = FakeClock()

    def late_s() -> float:
        clock.advance(2 * _DELAY_S)
        return clock()

    monkeypatch.setattr(textual.timer, "_time", SimpleNamespace(get_time=late_s))


async def test_a_call_comes_after_its_time_is_over(held_up):
    async with chatting() as driver:
        calls: list[str] = []
        call_once(driver.chat, _DELAY_S, lambda: calls.append("late"))
        await driver.until(lambda: calls == ["late"])


async def test_the_prompts_corner_is_right_after_a_busy_machine(held_up, monkeypatch):
    monkeypatch.setattr(draft_cost, "TICK_S", _DELAY_S)
    async with chatting(prefill_while_typing="off") as driver:
        for text, tokens in (("one", "5 tokens"), ("one two", "6 tokens")):
            driver.prompt.show_text(text)
            await driver.until(lambda tokens=tokens: driver.prompt.border_subtitle == tokens)


def test_no_one_relies_on_a_timer_that_may_never_call():
    files = Path(app.__file__).parent.rglob("*.py")
    users = {path.name for path in files if ".set_timer(" in path.read_text(encoding="utf-8")}
    assert users == {"textual_hacks.py"}
