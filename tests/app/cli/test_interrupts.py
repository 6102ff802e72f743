"""SIGINT in the line mode: from another process it ends it in every state, from the terminal in two
steps."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.program import exit_codes

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 120.0

PROGRAM = """
import builtins, os, sys, threading
from app.backend.local import engine_access
from app.cli import dispatch as command_line, line_mode as plain
from tests.app.fake_engine import Gate, Script
from tests.app.scripted_access import use_script

def tell():
    os.write(2, b"\\nHERE %d\\n" % os.getpid())

script = use_script(builtins, Script(replies=[["one", " two", " three"]]))
engine_access.check_model = lambda path: None
state = sys.argv[1]
if state == "loads":
    engine_access.open_model = lambda *_: (tell(), threading.Event().wait())
elif state == "compiles":
    def compile_on(*_):
        import numba
        tell()
        while True:
            numba.njit(lambda x: x + 1)(1)
    engine_access.open_model = compile_on
elif state == "replies":
    script.token_gate = Gate()
    wait = script.token_gate._condition.wait
    script.token_gate._condition.wait = lambda patience_s: (tell(), wait(patience_s))[1]
elif state == "asks":
    read = plain._read_line
    plain._read_line = lambda: (tell(), read())[1]
from app.models.library import choose_model as start
start.choose_model = lambda *_: "m.gguf"
sys.exit(command_line.main(["chat", "--plain", "m.gguf"]))
"""


class HeadlessChat:
    """Line mode with a scripted engine, on a pseudo-terminal or on pipes."""

    def __init__(self, state: str, on_terminal: bool) -> None:
        self.control, line = pty.openpty()
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, state], cwd=ROOT, stderr=pipe,
            stdin=line if on_terminal else pipe,
            stdout=line if on_terminal else subprocess.DEVNULL,
            preexec_fn=take_terminal if on_terminal else None,
            start_new_session=True, env={**os.environ, "TERM": "xterm"},
        )  # fmt: skip
        os.close(line)
        if state == "replies":
            self.type(b"hello\n")
        self.child_id = int(self.read_until("HERE ").split()[1])

    def type(self, text: bytes) -> None:
        os.write(self.process.stdin.fileno() if self.process.stdin else self.control, text)

    def read_until(self, words: str) -> str:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if words in line.decode():
                return line.decode()
        raise AssertionError(f"{words} never came")

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.control)
        for pipe in (self.process.stdin, self.process.stderr):
            if pipe is not None:
                pipe.close()


def take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def talks() -> Iterator[list[HeadlessChat]]:
    opened: list[HeadlessChat] = []
    yield opened
    for talk in opened:
        talk.close()


@pytest.mark.parametrize(
    ("state", "on_terminal", "to"),
    [
        ("loads", False, "child"),
        ("compiles", True, "supervisor"),
        ("asks", False, "supervisor"),
        ("replies", True, "child"),
    ],
)
def test_sigint_from_a_process_ends_every_line_mode_state(
    state: str, on_terminal: bool, to: str, talks: list[HeadlessChat]
) -> None:
    talks.append(talk := HeadlessChat(state, on_terminal))
    os.kill(talk.process.pid if to == "supervisor" else talk.child_id, signal.SIGINT)
    assert talk.process.wait(DEADLINE_S) == exit_codes.INTERRUPTED


@pytest.mark.smoke
def test_the_second_ctrl_c_at_the_terminal_quits(talks: list[HeadlessChat]) -> None:
    talks.append(talk := HeadlessChat("asks", on_terminal=True))
    talk.type(b"\x03")
    talk.read_until("ctrl+c again")
    talk.type(b"\x03")
    assert talk.process.wait(DEADLINE_S) == exit_codes.INTERRUPTED


def test_ctrl_c_stops_a_reply_and_returns_to_the_prompt(talks: list[HeadlessChat]) -> None:
    talks.append(talk := HeadlessChat("replies", on_terminal=True))
    talk.type(b"\x03")
    talk.read_until("stopped")
    talk.type(b"/quit\n")
    assert talk.process.wait(DEADLINE_S) == exit_codes.OK
