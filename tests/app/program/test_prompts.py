"""Prompts with blanks: files of the user's folder, and those that come with the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.program import paths
from app.program.prompts import BLANK, load_prompt, prompt_names, prompts_line
from app.program.refusals import Refusal
from tests.app.chat_driver import chatting
from tests.app.fake_engine import Script


@pytest.fixture
def directory() -> Path:
    path = paths.prompts_dir()
    assert path is not None
    path.mkdir(parents=True)
    return path


def test_three_prompts_come_with_the_program():
    assert prompt_names() == ["correct", "explain", "summarize"]
    for name in prompt_names():
        assert BLANK.search(load_prompt(name))
    assert "add NAME.md to" in prompts_line()


def test_own_prompts_are_added_and_replace(directory: Path):
    (directory / "mail.txt").write_text("Write a mail to {{name}}\x1b[31m")
    (directory / "explain.md").write_text("Mine: {{topic}}")
    (directory / "empty.md").write_text(" \n")
    assert prompt_names() == ["correct", "empty", "explain", "mail", "summarize"]
    assert load_prompt("explain") == "Mine: {{topic}}"
    assert "\x1b" not in load_prompt("mail")
    with pytest.raises(Refusal, match="is empty"):
        load_prompt("empty")


@pytest.mark.parametrize("name", ["../settings", "sumarize", ""])
def test_an_unknown_prompt_names_the_nearest(name: str):
    with pytest.raises(Refusal, match="there is no prompt"):
        load_prompt(name)


async def test_blanks_are_filled_one_after_the_other(directory: Path):
    (directory / "mail.md").write_text("Write to {{name}} about {{topic}}.")
    async with chatting(Script()) as driver:
        await driver.ready()
        await driver.say("/prompt mail")
        await driver.until(lambda: driver.prompt.selected_text == "{{name}}")
        await driver.type("Ann")
        await driver.pilot.press("tab")
        assert driver.prompt.selected_text == "{{topic}}"
        await driver.type("boats")
        assert driver.prompt.text == "Write to Ann about boats."
        assert not driver.prompt.has_blanks
        await driver.pilot.press("tab")
        assert driver.prompt.text == "Write to Ann about boats."


async def test_prompts_are_listed():
    async with chatting(Script()) as driver:
        await driver.ready()
        await driver.say("/prompt")
        await driver.note("prompts: correct, explain, summarize")
