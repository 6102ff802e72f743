import json
import os
import stat
from pathlib import Path

import pytest

from app.program import paths
from app.tui.chat import history as prompt_history
from app.tui.chat.draft import Draft, write_chip
from app.tui.chat.history import append_history, read_history
from tests.app.chat_driver import chatting

CHIP = write_chip(1, "pasted\ntext")
FOLDED = Draft(f"see {CHIP}", {CHIP: "pasted\ntext"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "history.jsonl"


def test_what_is_kept_comes_back_in_order_folds_and_all(file: Path):
    for draft in (Draft("one"), FOLDED, Draft("two\nlines")):
        assert append_history(file, draft) is None
    assert read_history(file) == [Draft("one"), FOLDED, Draft("two\nlines")]


def test_file_and_directory_are_for_the_user_alone(file: Path):
    append_history(file, FOLDED)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[]",
        b"3",
        b'{"shown": 3, "folds": {}}',
        b'{"shown": "x"}',
        b'{"shown": "x", "folds": []}',
        b'{"shown": "x", "folds": {"y": 3}}',
        b'{"shown": "  ", "folds": {}}',
        b"[" * 60_000,
        b'{"shown": "' + b"x" * 70_000 + b'", "folds": {}}',
    ],
)
def test_a_line_that_is_not_sound_is_passed_over(file: Path, line: bytes):
    append_history(file, Draft("before"))
    with file.open("ab") as stream:
        stream.write(line + b"\n")
    append_history(file, Draft("after"))
    assert read_history(file) == [Draft("before"), Draft("after")]


def test_what_acts_on_a_terminal_is_cleaned(file: Path):
    file.parent.mkdir()
    entry = {"shown": f"\x1b[31m {CHIP} \ud800", "folds": {CHIP: "\x07", "other": "\x1b"}}
    file.write_text(json.dumps(entry) + "\n", encoding="utf-8")
    (draft,) = read_history(file)
    assert draft == Draft(f"␛[31m {CHIP} �", {CHIP: "␇"})


def test_a_link_a_pipe_and_a_directory_are_no_history(file: Path, tmp_path: Path):
    file.parent.mkdir(mode=0o700)
    (tmp_path / "elsewhere").write_text('{"shown": "x", "folds": {}}\n', encoding="utf-8")
    file.symlink_to(tmp_path / "elsewhere")
    assert read_history(file) == []
    assert "not kept" in str(append_history(file, Draft("x")))
    file.unlink()
    os.mkfifo(file)
    assert read_history(file) == []
    assert "not kept" in str(append_history(file, Draft("x")))
    file.unlink()
    file.mkdir()
    assert read_history(file) == []
    assert "not kept" in str(append_history(file, Draft("x")))


def test_the_file_does_not_grow_for_ever(file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prompt_history, "MAX_FILE_BYTES", 2000)
    for i in range(100):
        assert append_history(file, Draft(f"message {i}")) is None
        assert file.stat().st_size <= 2100
    assert read_history(file)[-1] == Draft("message 99")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(list(file.parent.iterdir())) == 1


def test_a_huge_message_is_not_kept_in_the_file(file: Path):
    assert append_history(file, Draft("x" * 70_000)) is None
    assert read_history(file) == []


def test_without_a_place_nothing_is_kept(tmp_path: Path):
    assert append_history(None, Draft("x")) is None
    assert read_history(None) == []


async def test_ctrl_r_searches_the_history_from_the_newest():
    async with chatting() as driver:
        for text in ("Why is the sky blue?", "Name a river", "why not?", "Name a river"):
            driver.prompt.past.add(Draft(text))
        await driver.pilot.press(*"draft", "ctrl+r", "w", "h")
        await driver.shows("searching: wh_ · ctrl+r older · Enter takes it · Esc leaves")
        driver.chat.core.edge.hint()
        await driver.shows("searching: wh_")
        await driver.until(lambda: driver.prompt.text == "why not?")
        await driver.pilot.press("ctrl+r")
        await driver.until(lambda: driver.prompt.text == "Why is the sky blue?")
        await driver.pilot.press("ctrl+r")
        await driver.shows("no match: wh_")
        assert driver.prompt.text == "Why is the sky blue?"
        await driver.pilot.press("backspace", "backspace", *"river")
        await driver.until(lambda: driver.prompt.text == "Name a river")
        assert driver.prompt.past.unsent(driver.prompt.draft) == Draft("draft"), "to be saved"
        await driver.pilot.press("escape")
        await driver.until(lambda: driver.prompt.text == "draft")
        await driver.shows("Enter sends")

        await driver.pilot.press("ctrl+r", *"not", "enter")
        await driver.shows("Enter sends")
        assert driver.prompt.text == "why not?"
        assert driver.chat.core.chat_session.conversation.is_empty
        await driver.pilot.press("up")
        await driver.until(lambda: driver.prompt.text == "Name a river")
        await driver.pilot.press("down", "down")
        await driver.pilot.press("down")
        await driver.until(lambda: driver.prompt.text == "draft")


async def test_other_keys_end_a_search_of_the_history():
    async with chatting() as driver:
        driver.prompt.past.add(Draft("Name a river"))
        await driver.pilot.press(*"draft", "ctrl+r", *"riv", "ctrl+c")
        await driver.until(lambda: driver.prompt.text == "draft")
        await driver.pilot.press("ctrl+r", *"riv", "end", "!")
        await driver.until(lambda: driver.prompt.text == "Name a river!")
        await driver.pilot.press("ctrl+r", *"nosuch", "ctrl+r")
        await driver.shows("no match: nosuch_")


async def test_a_search_finds_messages_of_earlier_starts(file: Path, monkeypatch):
    monkeypatch.setattr(paths, "history_file", lambda: file)
    append_history(file, FOLDED)
    async with chatting() as driver:
        await driver.pilot.press("ctrl+r", *"SEE")
        await driver.until(lambda: driver.prompt.draft == FOLDED)
