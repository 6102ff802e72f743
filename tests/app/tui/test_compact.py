"""The chat shows summaries of the oldest turns: where they are, how to stop and remove them."""

from __future__ import annotations

import pytest

from app.conversations.store import Store
from app.tui.chat import compacting
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Gate, Script

WORDS = ["word", *[" word"] * 79]


def script(n_turns: int, n_ctx: int = 2048) -> Script:
    replies = [[*WORDS, f" {n}."] for n in range(n_turns)]
    return Script(replies=[*replies, ["It", " is", " short."], ["Then."]], n_ctx=n_ctx)


async def talk(driver: Driver, n_turns: int) -> None:
    await driver.ready()
    for n in range(n_turns):
        await driver.ask(f"question {n}")


async def test_a_summary_folds_the_turns_that_it_replaces():
    async with chatting(script(4)) as driver:
        await talk(driver, 4)
        await driver.say("/compact")
        await driver.note("The model now reads a summary of the first 6 messages")
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        await driver.note("the model reads a summary of what is above")
        assert [view.text for view in driver.chat.transcript.replies()] == [
            " ".join(["word"] * 80) + " 3."
        ]
        await driver.pilot.press("pageup", "pageup", "pageup")
        await driver.shows("question 2")
        await driver.pilot.press("ctrl+end")
        await driver.say("/compact show")
        shown = await driver.note("Summary of the first 6 messages")
        assert "It is short." in shown
        assert '- "question 0"' in shown
        await driver.say("/context")
        assert "summary" in await driver.note("Context:")
        # Folded text is found, too.
        await driver.pilot.press("ctrl+f")
        await driver.type("question 1")
        await driver.shows("1 of 1")
        await driver.pilot.press("escape")
        await driver.say("/compact undo")
        await driver.note("The summary is removed")
        assert not any("the model reads a summary" in note for note in driver.notes())
        await driver.say("/compact undo")
        await driver.note("nothing is summarized")


async def test_escape_stops_a_summary():
    async with chatting(script(4)) as driver:
        await talk(driver, 4)
        driver.script.token_gate = gate = Gate()
        gate.allow(1)
        await driver.say("/compact")
        await driver.until(gate.waiting.is_set)
        await driver.shows("stops the summary")
        await driver.pilot.press("escape")
        await driver.note("stopped: nothing is summarized")
        assert driver.chat.core.chat_session.conversation.summary is None
        gate.open()
        await driver.ask("question 4")


@pytest.mark.parametrize(
    ("argument", "line"),
    [("now", "/compact takes nothing"), ("show", "nothing is summarized"),
     ("", "nothing to summarize yet")],
)  # fmt: skip
async def test_a_summary_that_cannot_be_is_refused(argument: str, line: str):
    async with chatting(script(1)) as driver:
        await talk(driver, 1)
        await driver.say(f"/compact {argument}".rstrip())
        await driver.note(line)


async def test_a_full_context_is_summarized_in_a_pause(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compacting, "PAUSE_S", 0.05)
    async with chatting(script(4, n_ctx=400), compact="on") as driver:
        await talk(driver, 4)
        await driver.note("The model now reads a summary")
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        assert (await driver.ask("next")).text == "Then."


@pytest.mark.parametrize("setting", ["ask", "off"])
async def test_other_settings_only_name_the_command(setting: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compacting, "PAUSE_S", 0.05)
    async with chatting(script(4, n_ctx=380), compact=setting) as driver:
        await talk(driver, 4)
        line = await driver.note("% full")
        assert ("/compact" in line) == (setting == "ask")
        assert driver.chat.core.chat_session.conversation.summary is None


async def test_a_summary_is_there_after_a_restart():
    async with chatting(script(4)) as driver:
        await talk(driver, 4)
        await driver.say("/compact")
        await driver.note("The model now reads a summary")
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        assert driver.chat.core.chat_session.journal.wait_until_saved(20)
    async with chatting(script(1)) as driver:
        await driver.ready()
        await driver.shows("the model reads a summary of what is above")
        await driver.say("/compact show")
        await driver.note("It is short.")


async def test_pins_and_tags_are_commands_of_the_conversation():
    async with chatting(script(1)) as driver:
        await driver.ready()
        await driver.say("/pin")
        await driver.note("nothing is saved yet")
        await driver.ask("question 0")
        await driver.say("/pin")
        await driver.note("pinned: this conversation comes first")
        await driver.say("/tag Work")
        await driver.note("tags: #work")
        await driver.say("/tag -other")
        await driver.note("no tag other")
        assert driver.chat.core.chat_session.journal.wait_until_saved(20)
        assert Store().read("000001").marks.tags == ("work",)
        await driver.pilot.press("f8")
        await driver.shows("Pinned")
        await driver.shows("#work")
