"""The application on a pseudo-terminal: every way to end restores the terminal."""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from app.conversations.store import Store
from tests.app.chat_terminal import ENTERED_ALTERNATE_SCREEN, PATIENCE_S, Terminal

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path: Path):
    terminals: list[Terminal] = []

    def start(extra: str = "") -> Terminal:
        terminals.append(Terminal(extra, tmp_path))
        return terminals[-1]

    yield start
    for terminal in terminals:
        terminal.close()


@pytest.mark.parametrize(
    ("moment", "number", "code"),
    [
        ("decoding", signal.SIGTERM, 143),
        ("idle", signal.SIGHUP, 129),
        ("decoding", signal.SIGINT, 130),
    ],
    ids=str,
)
def test_a_signal_ends_the_chat_with_code_and_sane_terminal(start, moment, number, code):
    terminal = start()
    terminal.read_until(b"ready")
    if moment == "decoding":
        terminal.type("hello\r")
        terminal.read_until(b"writing")
    terminal.process.send_signal(number)
    assert terminal.wait() == code
    assert terminal.is_restored()


def test_a_sigcont_without_a_stop_still_reads_each_key_once(start):
    """Send SIGCONT many times a second, as cpulimit does, also while one is being handled."""
    terminal = start()
    terminal.read_until(b"ready")
    n_threads = psutil.Process(terminal.process.pid).num_threads()
    shown = terminal.output.count(ENTERED_ALTERNATE_SCREEN)
    for key, gap_s in zip("abcdefgh", (0.0, 0.01, 0.03, 0.05, 0.1, 0.15, 0.02, 0.0), strict=True):
        terminal.type(key)
        terminal.process.send_signal(signal.SIGCONT)
        time.sleep(gap_s)
    terminal.read_until_more(ENTERED_ALTERNATE_SCREEN, shown)
    give_up_s = time.monotonic() + PATIENCE_S
    # the last reader ends with its next look
    while psutil.Process(terminal.process.pid).num_threads() > n_threads:
        assert time.monotonic() < give_up_s, "a thread that read the terminal is left"
        time.sleep(0.02)
    terminal.type("ij")
    terminal.read_until(b"abcdefghij")
    while terminal.process.poll() is None:
        assert time.monotonic() < give_up_s, "the program did not end"
        # in its usual mode, as between two signals, a terminal takes it for XON
        terminal.type("\x11")
        terminal.read(1.0)
    assert terminal.wait() == 0
    assert terminal.is_restored()


EDITOR = """
import os, sys, time
with open(sys.argv[1], "w") as file:
    file.write("from the editor")
print("EDITOR", os.getpid(), "HERE", flush=True)
while not os.path.exists({go!r}):
    time.sleep(0.02)
"""


_MORE_TOKENS = """
import os, threading, time
def let_more_come():
    while not os.path.exists({more!r}):
        time.sleep(0.02)
    script.token_gate.open()
threading.Thread(target=let_more_come, daemon=True).start()
"""


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install an editor that ends when the returned file appears."""
    program = tmp_path / "editor.py"
    go = tmp_path / "go"
    program.write_text(EDITOR.format(go=str(go)), encoding="utf-8")
    monkeypatch.setenv("VISUAL", f"{sys.executable} {program}")
    return go


def _editor_process(terminal: Terminal) -> psutil.Process:
    terminal.read_until(b" HERE\r\n")
    found = re.search(rb"EDITOR (\d+) HERE", terminal.output)
    assert found is not None
    return psutil.Process(int(found[1]))


def saved_reply(state: Path) -> str:
    return Store(state / "jalopy" / "conversations").read("000001").conversation.messages[-1].text


def test_a_signal_during_an_editor_ends_both_and_saves_the_reply(start, editor, tmp_path):
    terminal = start()
    terminal.read_until(b"ready")
    terminal.type("hello\r")
    terminal.read_until(b"writing")
    terminal.type("\x07")
    process = _editor_process(terminal)
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.wait() == 129
    assert terminal.is_restored()
    process.wait(PATIENCE_S)
    assert saved_reply(tmp_path).startswith("Hello")


def test_a_signal_saves_the_reply_even_if_the_exit_is_slow(start, tmp_path):
    terminal = start(
        """
import time
from app.tui.chat import screen as screen
screen.SAVE_PERIOD_S = 600
chat.exit = lambda app, **given: time.sleep(600)
"""
    )
    terminal.read_until(b"ready")
    terminal.type("hello\r")
    terminal.read_until(b"writing")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.wait() == 143
    assert saved_reply(tmp_path).startswith("Hello")


def test_a_reply_during_an_editor_is_saved_and_not_drawn(start, editor, tmp_path):
    more = tmp_path / "more"
    terminal = start(_MORE_TOKENS.format(more=str(more)))
    terminal.read_until(b"ready")
    terminal.type("hello\r")
    terminal.read_until(b"writing")
    terminal.type("\x07")
    _editor_process(terminal)
    before = terminal.output
    assert "there." not in saved_reply(tmp_path)
    more.touch()
    give_up_s = time.monotonic() + PATIENCE_S
    while "there." not in saved_reply(tmp_path):
        assert time.monotonic() < give_up_s, "nothing of the reply was saved"
        terminal.read(0.1)
    assert terminal.output == before
    editor.touch()
    terminal.read_until_more(ENTERED_ALTERNATE_SCREEN, before.count(ENTERED_ALTERNATE_SCREEN))
    terminal.read_until(b"from the editor")
    terminal.type("\x11")
    assert terminal.wait() == 0
    assert terminal.is_restored()


@pytest.mark.parametrize("stderr", ["open({!r}, 'w')", "None"], ids=["redirected", "closed"])
def test_the_chat_draws_on_the_terminal_if_stderr_is_redirected(start, stderr, tmp_path: Path):
    errors = tmp_path / "errors"
    errors.touch()
    terminal = start(f"sys.__stderr__ = sys.stderr = {stderr.format(str(errors))}")
    terminal.read_until(b"ready")
    terminal.type("\x11")
    assert terminal.wait() == 0
    assert terminal.is_restored()
    assert errors.read_text(encoding="utf-8") == ""


def test_a_dead_terminal_does_not_keep_the_process_alive(start):
    terminal = start()
    terminal.read_until(b"ready")
    terminal.hang_up()
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.process.wait(PATIENCE_S) == 129


@pytest.mark.smoke
def test_a_lost_terminal_ends_the_chat_without_a_signal(start):
    """The system sends SIGHUP only to processes whose controlling terminal it is."""
    terminal = start()
    terminal.read_until(b"ready")
    terminal.hang_up()
    assert terminal.process.wait(PATIENCE_S) == 129


def test_an_interface_bug_is_one_line_without_typed_text(start, tmp_path: Path):
    terminal = start(
        """
from app.tui.chat.message_actions import MessageActions
def fail(self, argument=""):
    secret = "words of the user"
    raise RuntimeError(secret)
MessageActions.action_regenerate = fail
"""
    )
    terminal.read_until(b"ready")
    terminal.type("\x1b[20~")
    assert terminal.wait() == 1
    assert terminal.is_restored()
    after = terminal.output.rsplit(b"\x1b[?1049l", 1)[1]
    assert b"jalopy: internal error: RuntimeError (details in " in after
    assert b"Traceback" not in terminal.output
    assert b"words of the user" not in terminal.output
    log = (tmp_path / "jalopy" / "jalopy.log").read_text(encoding="utf-8")
    assert "builtins.RuntimeError" in log
    assert "Traceback" in log
    assert "words of the user" not in log.replace('secret = "words of the user"', "")
