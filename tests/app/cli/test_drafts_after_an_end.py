"""A draft comes back however the chat ended: the whole program on a pseudo-terminal."""

import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.conversations.database import NAME
from app.program import exit_codes, paths
from app.tui.chat.composer import DRAFT_PERIOD_S
from tests.programs.soak.chat import Chat

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
SIZE = (80, 24)
DRAFT = "a draft of some words"

PROGRAM = """
import builtins, sys
from app.backend.local import engine_access
from app.cli import dispatch
from app.models.library import choose_model
from tests.app.fake_engine import Script
from tests.app.scripted_access import use_script

use_script(builtins, Script())
engine_access.state_files = lambda *_: None
engine_access.check_model = lambda path: None
choose_model.choose_model = lambda *_: "m.gguf"
sys.exit(dispatch.main(["chat", "m.gguf"]))
"""


@pytest.fixture
def chats() -> Iterator[list[Chat]]:
    opened: list[Chat] = []
    yield opened
    for chat in opened:
        chat.close()


def start(chats: list[Chat]) -> Chat:
    environ = {**os.environ, "TERM": "xterm-256color"}
    chat = Chat([sys.executable, "-c", PROGRAM], environ, ROOT, SIZE)
    chats.append(chat)
    chat.wait_for(lambda: "Enter sends" in shown(chat), "the prompt")
    return chat


def shown(chat: Chat) -> str:
    return "\n".join(chat.screen.rows())


def saved_drafts() -> str:
    """Return the content of the rows with drafts."""
    root = paths.conversations_dir()
    if root is None or not (root / NAME).exists():
        return ""
    with closing(sqlite3.connect(root / NAME)) as db:
        return "".join(content for (content,) in db.execute("SELECT content FROM draft"))


def kill_chat(chat: Chat) -> None:
    """Kill the process of the chat once the draft must be saved."""
    chat.becomes(lambda: False, DRAFT_PERIOD_S + 1.0)
    chat.wait_for(lambda: DRAFT in saved_drafts(), "the draft in the database")
    chat.child.send_signal(signal.SIGKILL)


def press_ctrl_q(chat: Chat) -> None:
    chat.press(b"\x11")


ENDINGS = [
    (kill_chat, exit_codes.NO_MEMORY),
    (press_ctrl_q, exit_codes.OK),
    (Chat.close_terminal, exit_codes.HANGUP),
]


def test_drafts_are_saved_at_least_every_two_seconds() -> None:
    assert DRAFT_PERIOD_S <= 2.0


@pytest.mark.parametrize(("end", "code"), ENDINGS)
def test_a_draft_is_back_after_every_end(
    end: Callable[[Chat], None], code: int, chats: list[Chat]
) -> None:
    chat = start(chats)
    chat.press(DRAFT)
    chat.wait_for(lambda: DRAFT in shown(chat), "the draft")
    end(chat)
    assert chat.wait_for_end() == code

    chat = start(chats)
    chat.wait_for(lambda: DRAFT in shown(chat), "the draft again")
    line = "Not sent before Jalopy closed: it is in the prompt again"
    chat.wait_for(lambda: line in shown(chat), "the line about it")


def test_ctrl_c_clears_the_prompt_and_a_second_quits(chats: list[Chat]) -> None:
    chat = start(chats)
    chat.press(DRAFT)
    chat.wait_for(lambda: DRAFT in shown(chat), "the draft")
    chat.press(b"\x03")
    chat.wait_for(lambda: "Up brings the text back" in shown(chat), "the hint")
    assert DRAFT not in shown(chat)
    chat.press(b"\x1b[A")
    chat.wait_for(lambda: DRAFT in shown(chat), "the text from the history")
    chat.press(b"\x03")
    chat.wait_for(lambda: DRAFT not in shown(chat), "the empty prompt")
    chat.press(b"\x03")
    assert chat.wait_for_end() == exit_codes.OK

    chat = start(chats)
    chat.wait_for(lambda: "Q4_K_M" in shown(chat), "the model, after the history")
    assert DRAFT not in shown(chat)
    chat.press(b"\x1b[A")
    chat.wait_for(lambda: DRAFT in shown(chat), "the text from the history of the last start")
