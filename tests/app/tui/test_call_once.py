"""Delayed calls happen once, even if the machine delays the process."""

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
    """Advance the clock by more than the delay whenever a timer reads it."""
    clock = FakeClock()

    def late_s() -> float:
        clock.advance(2 * _DELAY_S)
        return clock()

    monkeypatch.setattr(textual.timer, "_time", SimpleNamespace(get_time=late_s))


async def test_a_late_call_still_comes(held_up):
    async with chatting() as driver:
        calls: list[str] = []
        call_once(driver.chat, _DELAY_S, lambda: calls.append("late"))
        await driver.until(lambda: calls == ["late"])


async def test_the_prompts_corner_is_correct_on_a_busy_machine(held_up, monkeypatch):
    monkeypatch.setattr(draft_cost, "TICK_S", _DELAY_S)
    async with chatting(prefill_while_typing="off") as driver:
        for text, tokens in (("one", "5 tokens"), ("one two", "6 tokens")):
            driver.prompt.show_text(text)
            await driver.until(lambda tokens=tokens: driver.prompt.border_subtitle == tokens)


def test_all_delayed_calls_use_call_once():
    files = Path(app.__file__).parent.rglob("*.py")
    users = {path.name for path in files if ".set_timer(" in path.read_text(encoding="utf-8")}
    assert users == {"textual_hacks.py"}
