"""What a terminal sends, on the chat as it is used: a paste is text, Enter is Enter, and no byte ends the program."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.chat_terminal import PATIENCE_S, Terminal

_MIRROR = """
import json, os, threading, time
apps, make = [], module.JalopyApp
def keep(*given, **more):
    apps.append(make(*given, **more))
    return apps[-1]
module.JalopyApp = keep

def mirror():
    while True:
        time.sleep(0.02)
        try:
            turns = apps[-1].chat.turns
            seen = dict(
                draft=apps[-1].chat.prompt.draft.text,
                said=[message.text for message in turns.conversation.messages],
                is_ready=turns.model is not None,
                screen=type(apps[-1].screen).__name__,
            )
        except Exception:
            continue
        with open({beside!r}, "w") as file:
            json.dump(seen, file)
        os.replace({beside!r}, {path!r})
threading.Thread(target=mirror, daemon=True).start()
"""


class Chat:
    """A chat on a terminal, and what stands in it."""

    def __init__(self, directory: Path, extra: str = "") -> None:
        self._seen = directory / "seen"
        mirror = _MIRROR.format(path=str(self._seen), beside=str(directory / "seen-beside"))
        self.terminal = Terminal(mirror + extra, directory)

    def now(self) -> dict[str, Any]:
        return json.loads(self._seen.read_text()) if self._seen.exists() else {}

    def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until what stands there meets a condition."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not (self.now() and condition(self.now())):
            assert time.monotonic() < give_up_s, f"never happened: {str(self.now())[:2000]}"
            assert self.terminal.process.poll() is None, self.terminal.output[-2000:]
            self.terminal.read(0.05)
        return self.now()

    def is_ready(self) -> None:
        self.until(lambda seen: seen["is_ready"])

    def leave(self) -> None:
        self.terminal.type("\x11")
        assert self.terminal.wait() == 0
        assert self.terminal.is_restored()


@pytest.fixture
def open_chat(tmp_path: Path):
    chats: list[Chat] = []

    def open_chat(extra: str = "") -> Chat:
        chats.append(Chat(tmp_path, extra))
        return chats[-1]

    yield open_chat
    for chat in chats:
        chat.terminal.close()


@pytest.fixture
def editor_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand for an editor that leaves a file when it is opened."""
    opened, program = tmp_path / "opened", tmp_path / "editor.py"
    program.write_text(f"open({str(opened)!r}, 'w').close()", encoding="utf-8")
    monkeypatch.setenv("VISUAL", f"{sys.executable} {program}")
    return opened


def test_a_paste_presses_no_key(open_chat, editor_was_opened):
    chat = open_chat()
    chat.is_ready()
    hostile = b"hello \x1b x \x07" + b" " * 40_000 + b"\x1b:!touch file\r\r\x1b\r\x11"
    chat.terminal.send(b"\x1b[200~" + hostile + b"\x1b[201~ end")
    seen = chat.until(lambda seen: seen["draft"].endswith(" end"))
    assert seen["draft"] == "hello ␛ x ␇" + " " * 40_000 + "␛:!touch file\n\n␛\n␑ end"
    assert seen["said"] == []
    assert not editor_was_opened.exists()
    chat.leave()


@pytest.mark.parametrize("line_end", [b"\r", b"\n", b"\r\n"])
def test_coloured_output_is_pasted_as_one_draft(open_chat, line_end):
    chat = open_chat()
    chat.is_ready()
    lines = [b"\x1b[1mmain.c:1:\x1b[0m \x1b[31merror:\x1b[0m no", b"\x1b[32m   ^~~\x1b[m", b"1 error"]
    chat.terminal.send(b"\x1b[200~" + line_end.join(lines) + b"\x1b[201~")
    seen = chat.until(lambda seen: "1 error" in seen["draft"])
    assert seen["draft"] == "␛[1mmain.c:1:␛[0m ␛[31merror:␛[0m no\n␛[32m   ^~~␛[m\n1 error"
    assert seen["said"] == []
    chat.leave()


def test_bytes_that_are_not_utf_8_are_shown_as_such(open_chat):
    chat = open_chat()
    chat.is_ready()
    chat.terminal.send(b"caf\xe9 \x1b[M\x40\xe0\xb0\x1b[M\x43\x9f\x21au \xff\xfelait")
    chat.until(lambda seen: seen["draft"] == "caf� au ��lait")
    chat.leave()


def test_enter_typed_before_the_first_frame_sends(open_chat):
    chat = open_chat()
    chat.terminal.type("why?\r")
    seen = chat.until(lambda seen: seen["said"])
    assert (seen["said"][0], seen["draft"]) == ("why?", "")
    chat.leave()
