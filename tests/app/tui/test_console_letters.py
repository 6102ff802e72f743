"""Letters of the Linux console: plain signs of the same width."""

import pytest

from app.tui.console_letters import plain_letters
from tests.app.chat_driver import chatting
from tests.app.fake_engine import Script
from tests.app.scenes import tokens


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("plain", "plain"),
        ("‹ 1/2 › · 105 tokens", "< 1/2 > - 105 tokens"),
        ("╭─ title ─╮", "+- title -+"),
        ("a │ b ·", "a | b -"),
        ("· text 2.5K", "- text 2.5K"),
        ("├── Grüße, col·lecció", "+-- Grüße, col·lecció"),
        ("cut…", "cut."),
    ],
)
def test_signs_become_plain_letters(text: str, plain: str) -> None:
    assert plain_letters(text) == plain


@pytest.mark.slow
async def test_branches_and_tables_are_plain_on_the_console(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "linux")
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    async with chatting(Script(replies=[tokens(table), tokens(table)])) as driver:
        await driver.ask("one")
        await driver.say("/regen")
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        await driver.shows("< 2/2 > - ")
        await driver.shows("threads | ")
        for sign in "‹›│─·…":
            assert sign not in driver.screen_text()
