"""Terminal input in the chat: pastes are text, Enter is Enter, and no byte ends the program."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.chat_terminal import PATIENCE_S, Terminal

pytestmark = pytest.mark.slow

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
            chat_session = apps[-1].chat.core.chat_session
            seen = dict(
                draft=apps[-1].chat.prompt.draft.text,
                said=[message.text for message in chat_session.conversation.messages],
                is_ready=chat_session.model is not None,
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
    """Chat on a terminal."""

    def __init__(self, directory: Path, extra: str = "") -> None:
        self._seen = directory / "seen"
        mirror = _MIRROR.format(path=str(self._seen), beside=str(directory / "seen-beside"))
        self._seen.unlink(missing_ok=True)
        self.terminal = Terminal(mirror + extra, directory)

    def now(self) -> dict[str, Any]:
        return json.loads(self._seen.read_text()) if self._seen.exists() else {}

    def until(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until the text on the screen meets a condition."""
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
    """Install an editor that writes a file when it is opened."""
    opened = tmp_path / "opened"
    program = tmp_path / "editor.py"
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
    lines = [
        b"\x1b[1mmain.c:1:\x1b[0m \x1b[31merror:\x1b[0m no",
        b"\x1b[32m   ^~~\x1b[m",
        b"1 error",
    ]
    for line_end in (b"\r", b"\n", b"\r\n"):  # coloured output of a program
        chat.terminal.send(b"\x1b[200~" + line_end.join(lines) + line_end + b"\x1b[201~")
    seen = chat.until(lambda seen: seen["draft"].count("1 error\n") == 3)
    assert seen["draft"].endswith(
        "end" + 3 * "␛[1mmain.c:1:␛[0m ␛[31merror:␛[0m no\n␛[32m   ^~~␛[m\n1 error\n"
    )
    assert seen["said"] == []
    chat.terminal.send(b"caf\xe9 \x1b[M\x40\xe0\xb0\x1b[M\x43\x9f\x21au \xff\xfelait")  # not UTF-8
    chat.until(lambda seen: seen["draft"].endswith("\ncaf� au ��lait"))
    chat.leave()


@pytest.mark.smoke
def test_enter_typed_before_the_first_frame_sends(open_chat):
    chat = open_chat()
    chat.terminal.type("why?\r")
    seen = chat.until(lambda seen: seen["said"])
    assert (seen["said"][0], seen["draft"]) == ("why?", "")
    chat.leave()


_FAILS = """
from app.tui.chat.message_actions import MessageActions
def fail(self, argument):
    raise RuntimeError("secret")
MessageActions.action_regenerate = fail
"""
_FAILS_TO_TAKE = """
from app.tui.chat.composer import Composer
def fail(self, draft):
    raise RuntimeError("secret")
Composer._add_to_history = fail
"""
_FAILS_TO_READ = """
from app.tui.terminal_input import TerminalInput
feed = TerminalInput.feed
def fail(self, data):
    if data == b"!":
        raise RuntimeError("secret")
    return feed(self, data)
TerminalInput.feed = fail
"""
_SAVED = b"jalopy: what was not sent is there again at the next start\r\n"


def _recalled(chat: Chat, n_times: int) -> list[str]:
    """Go back through the sent messages."""
    found: list[str] = []
    for _ in range(n_times):
        before = chat.now()["draft"]
        chat.terminal.type("\x1b[1;3A")
        found.append(chat.until(lambda seen, before=before: seen["draft"] != before)["draft"])
    return found


@pytest.mark.parametrize(("fault", "key"), [(_FAILS, "\x1b[20~"), (_FAILS_TO_READ, "!")])
def test_a_crash_keeps_the_draft_and_queued_messages(open_chat, fault, key):
    chat = open_chat(fault)
    chat.is_ready()
    chat.terminal.type("asked\r")
    chat.terminal.read_until(b"writing")
    chat.terminal.type("waits\r")
    chat.terminal.read_until(b"queued")
    chat.terminal.send(b"\x1b[200~" + b"a\xc3\xa4" * 1000 + b"\x1b[201~ two\nlines")
    chat.until(lambda seen: seen["draft"].endswith("lines"))
    chat.terminal.type(key)
    assert chat.terminal.wait() == 1
    assert chat.terminal.is_restored()
    assert b"jalopy: internal error: RuntimeError (details in " in chat.terminal.output
    assert chat.terminal.output.endswith(_SAVED)
    if fault is not _FAILS:
        return

    again = open_chat()
    again.until(lambda seen: seen["draft"] == "aä" * 1000 + " two\nlines")
    again.terminal.read_until(b"A queued message was not sent before Jalopy closed; ")
    assert _recalled(again, 1) == ["waits"]
    again.leave()
    assert b"not sent is there again" in again.terminal.output.rsplit(b"\x1b[?1049l", 1)[1]

    third = open_chat()  # neither was ever sent
    third.until(lambda seen: seen["draft"] == "aä" * 1000 + " two\nlines")
    assert _recalled(third, 1) == ["waits"]
    third.leave()


def test_a_message_that_ends_the_interface_is_kept(open_chat):
    chat = open_chat(_FAILS_TO_TAKE)
    chat.is_ready()
    chat.terminal.type("the last straw\r")
    assert chat.terminal.wait() == 1
    assert chat.terminal.output.endswith(_SAVED)
    again = open_chat()
    again.until(lambda seen: seen["draft"] == "the last straw")
    again.leave()


def test_a_hangup_keeps_the_draft(open_chat):
    chat = open_chat()
    chat.is_ready()
    chat.terminal.type("half a question")
    chat.until(lambda seen: seen["draft"] == "half a question")
    chat.terminal.process.send_signal(signal.SIGHUP)
    assert chat.terminal.wait() == 129
    again = open_chat()
    again.until(lambda seen: seen["draft"] == "half a question")
    again.leave()


def test_a_lost_draft_is_reported(open_chat, tmp_path):
    (tmp_path / "jalopy" / "conversations" / "conversations.db").mkdir(mode=0o700, parents=True)
    chat = open_chat(_FAILS)
    chat.is_ready()
    chat.terminal.type("lost")
    chat.until(lambda seen: seen["draft"] == "lost")
    chat.terminal.type("\x1b[20~")
    assert chat.terminal.wait() == 1
    assert chat.terminal.output.endswith(b"conversations.db is not a regular file\r\n")
    assert b"jalopy: not sent, and not saved: " in chat.terminal.output


_REMOTE = """
import socket, threading
def refuse(*_, **__):
    raise OSError("no network")
socket.getaddrinfo = socket.socket.connect = refuse
os.chdir({directory!r})
script.token_gate.open()
asked_to_quit = []
chat.exit = lambda app, *_, **__: asked_to_quit.append(app)  # a key or the palette may well ask for it

def obey():
    while True:
        time.sleep(0.01)
        try:
            with open({orders!r}) as file:
                order = file.read()
        except OSError:
            continue
        os.unlink({orders!r})
        apps[-1].call_from_thread(lambda: eval(order, dict(app=apps[-1], Path=Path)) and None)
threading.Thread(target=obey, daemon=True).start()
"""
_SCREENS = {
    "the prompt": "None",
    "a message": "app.chat.transcript.messages() and app.chat.transcript.messages()[-1].focus()",
    "help": "app.action_help()",
    "performance": "app.action_show('performance')",
    "models": "app.action_show('models')",
    "threads": "app.action_show('threads')",
    "doctor": "app.action_show('doctor')",
    "conversations": "app.action_show('conversations')",
    "palette": "app.action_command_palette()",
    "themes": "app.action_theme()",
    "switch": "app.push_screen(__import__('app.tui.screens.question').tui.screens.question.SwitchModelScreen("
    "'other', 10, None, app.keymap))",
    "inspect": "app.push_screen(__import__('app.tui.screens.models').tui.screens.models.InspectScreen("
    "Path('x.gguf'), 'x', app.keymap))",
}
_N_RANDOM_BYTES = int(os.environ.get("JALOPY_TEST_RANDOM_BYTES", "200"))
"""Keys for each screen; a key takes a few milliseconds."""


def test_random_bytes_leave_every_screen_running(open_chat, tmp_path, monkeypatch):
    monkeypatch.setenv("VISUAL", "true")
    rng = random.Random(1)
    orders = tmp_path / "orders"
    chat = open_chat(_REMOTE.format(directory=str(tmp_path), orders=str(orders)))
    chat.is_ready()
    chat.terminal.type("hello\r")
    chat.until(lambda seen: len(seen["said"]) == 2)

    def order(expression: str) -> None:
        (tmp_path / "orders-beside").write_text(expression)
        (tmp_path / "orders-beside").rename(orders)
        chat.until(lambda _: not orders.exists())

    for name, opening in _SCREENS.items():
        for _ in range(4):  # many a byte leaves the screen
            order(opening)
            chat.terminal.send(rng.randbytes(_N_RANDOM_BYTES // 4))
        chat.terminal.send(b"\x1b[201~")
        mark = f"still here after {name}"
        give_up_s = time.monotonic() + PATIENCE_S
        while mark not in chat.now()["draft"]:
            assert time.monotonic() < give_up_s, (name, chat.now())
            assert chat.terminal.process.poll() is None, (name, chat.terminal.output[-400:])
            if chat.now()["screen"] == "ChatScreen":
                order("app.chat.prompt.focus()")
                chat.terminal.type(f"\x1b[200~{mark}\x1b[201~")
            else:
                chat.terminal.type("\x1b")
            chat.terminal.read(0.3)
