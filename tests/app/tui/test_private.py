"""A private conversation leaves nothing on disk: no message, draft or history line."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from app.conversations.store import Store
from app.documents.pictures import PICTURES, REFERENCE_START, digest_of
from tests.app.chat_driver import Driver, chatting
from tests.app.fake_engine import Script
from tests.app.scenes import tokens

SECRET = "xylophone"


def script(n_replies: int = 4) -> Script:
    return Script(replies=[tokens(f"The {SECRET} reply {n}") for n in range(n_replies)])


def files_with(text: str) -> list[Path]:
    """Return all files of the user's folders that contain a text."""
    roots = {
        os.environ[name]
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
    }
    files = [path for root in roots for path in Path(root).rglob("*") if path.is_file()]
    assert files, "the folders of the test are known"
    return [path for path in files if text.encode() in path.read_bytes()]


async def until_saved(driver: Driver) -> None:
    """Wait until what would be saved is saved."""
    assert driver.chat.core.chat_session.journal.wait_until_saved(20)
    await driver.pilot.pause()


async def test_nothing_of_a_private_conversation_is_on_disk():
    async with chatting(script()) as driver:
        await driver.ready()
        await driver.ask("a public question")
        await until_saved(driver)
        await driver.say("/private")
        await driver.note("nothing of it is saved")
        assert "private" in driver.screen_text().splitlines()[0]
        await driver.ask(f"my {SECRET}")
        await driver.say("/regen")
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        await driver.ask(f"another {SECRET}")
        await driver.type(f"unsent {SECRET}")
        driver.chat.composer._begin_saving_drafts()
        assert driver.chat.composer.save_drafts(20) == ""
        assert driver.chat.core.chat_session.journal.id == ""
    public = Store().read("000001").conversation.messages
    assert [message.text for message in public] == ["a public question", f"The {SECRET} reply 0"]
    assert [path.name for path in files_with("a public question")] != []
    assert {path.name for path in files_with(f"my {SECRET}")} == set()
    assert {path.name for path in files_with(f"another {SECRET}")} == set()
    assert {path.name for path in files_with(f"unsent {SECRET}")} == set()
    assert {path.name for path in files_with("reply 1")} == set()


PIXELS = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def test_no_command_saves_anything_of_a_private_conversation(
    tmp_path: Path,
):
    """All commands that save something are tried; then the disk has nothing of it."""
    picture = tmp_path / f"{SECRET}.png"
    picture.write_bytes(base64.b64decode(PIXELS))
    words = [SECRET, *[" word"] * 119]
    replies = [[*words, f" {n}."] for n in range(4)]
    script = Script(replies=[*replies, tokens(f"A {SECRET} summary.")], sees=True)
    async with chatting(script) as driver:
        await driver.ready()
        await driver.say("/private")
        for n in range(4):
            await driver.ask(f"{SECRET} question {n}")
        await driver.say("/compact")
        await driver.note("The model now reads a summary")
        await driver.until(lambda: not driver.chat.core.chat_session.is_busy)
        for command in (f"/tag {SECRET}", "/pin"):
            await driver.say(command)
            await driver.note("a private conversation is not saved")
        await driver.say(f"/title {SECRET}")
        await driver.note("nothing is saved yet")
        PICTURES.add(picture.read_bytes())
        size = f"{REFERENCE_START}1 x 1 {digest_of(picture.read_bytes())}]"
        await driver.ask(f"{SECRET}.png:\n```\n{size}\n```\n{SECRET} picture")
        await driver.say(f"/system {SECRET}")
        await driver.say(f"/find {SECRET}")
        await driver.pilot.press("escape")
        await driver.pilot.press("f8")
        await driver.shows("No saved conversations")
        await driver.pilot.press("escape")
        await driver.say("/compact undo")
    assert files_with(SECRET) == []
    digest = digest_of(picture.read_bytes())
    roots = [Path(os.environ[name]) for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME")]
    assert not [path for root in roots for path in root.rglob(f"*{digest}*")]


@pytest.mark.parametrize("leave", ["/new", "f8"])
async def test_the_next_conversation_is_saved_again(leave: str):
    async with chatting(script()) as driver:
        await driver.ready()
        await driver.ask("a public question")
        await driver.say("/private")
        await driver.ask(f"my {SECRET}")
        if leave == "/new":
            await driver.say("/new")
            await driver.note("The private one is gone")
        else:
            await driver.pilot.press("f8")
            await driver.shows("a public question")
            await driver.pilot.press("enter")
            await driver.note("Continuing")
        assert "private" not in driver.screen_text().splitlines()[0]
        await driver.ask("public again")
        await until_saved(driver)
    assert files_with("public again")


async def test_a_private_conversation_is_not_copied():
    async with chatting(script()) as driver:
        await driver.ready()
        await driver.say("/private")
        await driver.ask(f"my {SECRET}")
        await driver.say("/fork")
        await driver.note("a private conversation is not saved")
