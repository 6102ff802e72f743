"""The chat over a scripted engine, in a process of its own on a pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
ENTERED_ALTERNATE_SCREEN = b"\x1b[?1049h"
LEFT_ALTERNATE_SCREEN = b"\x1b[?1049l"

_SERVER = """
import json, os, socket, sys
sys.path.insert(0, {root!r})
from app.tui.start import import_textual
import_textual()
import app.chat.local, app.tui.app, app.tui.markdown.growing, app.tui.widgets.reply_body, tests.app.fake_engine

orders = socket.socket(fileno=os.dup(0))
lines = orders.makefile("rw")
while True:
    said, handles, *_ = socket.recv_fds(orders, 1, 1)
    if not said:
        sys.exit()
    order = json.loads(lines.readline())
    if not handles:
        pid, status = os.waitpid(order, os.WNOHANG)
        answer = os.waitstatus_to_exitcode(status) if pid else None
    elif (answer := os.fork()) == 0:
        break
    else:
        os.close(handles[0])
    print(json.dumps(answer), file=lines, flush=True)
lines.detach()
orders.close()
os.setsid()
for number in range(3):
    os.dup2(handles[0], number)
os.close(handles[0])
sys.stdout.reconfigure(line_buffering=True)  # as on a terminal
environ, program = order
os.environ.clear()
os.environ.update(environ)
exec(program)
"""
_PROGRAM = """
import app.tui.app as module
from pathlib import Path
from app.chat.options import ChatOptions
from app.program.settings import built_in_settings
from app.tui.start import run_tui
from tests.app.fake_engine import Gate, Script

script = Script(token_gate=Gate())
script.token_gate.allow(1)
options = ChatOptions(open_model=script.open_model, sampling=lambda model, mode: None)
chat = module.JalopyApp
module.JalopyApp = lambda settings, path, **kept: chat(settings, path, options=options, **kept)
{extra}
sys.exit(run_tui(built_in_settings(), Path("model.gguf")))
"""


class ForkServer:
    """A process that has imported the program, which is most of a start, and forks for each chat."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair()
        environ = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # it must have no thread when it forks
        program = [sys.executable, "-c", _SERVER.format(root=str(ROOT))]
        self._server = subprocess.Popen(program, stdin=theirs, cwd=ROOT, env=environ)
        theirs.close()
        self._answers = self._orders.makefile("r")

    def ask(self, order: object, *handles: int) -> int | None:
        """Start ``[environ, program]`` on a terminal and return its pid; without one, return the exit code of a pid."""
        socket.send_fds(self._orders, [b"."], handles)
        self._orders.sendall(json.dumps(order).encode() + b"\n")
        answer: int | None = json.loads(self._answers.readline())
        return answer

    def close(self) -> None:
        self._answers.close()
        self._orders.close()
        self._server.wait(PATIENCE_S)


class ForkedProcess:
    """What ``subprocess.Popen`` is for a process of one's own."""

    def __init__(self, server: ForkServer, environ: dict[str, str], program: str, terminal: int) -> None:
        self._server = server
        self.returncode: int | None = None
        pid = server.ask([environ, program], terminal)
        assert pid is not None
        self.pid = pid

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask(self.pid)
        return self.returncode

    def wait(self, timeout_s: float) -> int | None:
        give_up_s = time.monotonic() + timeout_s
        while self.poll() is None:
            assert time.monotonic() < give_up_s, "the program did not end"
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class Terminal:
    """A program on a pseudo-terminal of 80 by 24."""

    def __init__(self, server: ForkServer, extra: str, state_home: Path) -> None:
        self.master, slave = pty.openpty()
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        environ = {
            **os.environ,
            "TERM": "xterm-256color",
            "XDG_STATE_HOME": str(state_home),
            "COLUMNS": "80",
            "LINES": "24",
        }
        self.process = ForkedProcess(server, environ, _PROGRAM.format(extra=extra), slave)
        self.output = b""

    def read_until(self, wanted: bytes) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while wanted not in self.output:
            assert time.monotonic() < give_up_s, f"{wanted!r} never came: {self.output[-2000:]!r}"
            self.read(0.1)

    def read_until_more(self, wanted: bytes, n_before: int) -> None:
        """Read until there is more of it than before."""
        give_up_s = time.monotonic() + PATIENCE_S
        while self.output.count(wanted) <= n_before:
            assert time.monotonic() < give_up_s, f"{wanted!r} never came again"
            self.read(0.1)

    def type(self, text: str) -> None:
        self.send(text.encode())

    def send(self, data: bytes) -> None:
        """Send what a terminal sends, and read what is painted meanwhile."""
        give_up_s = time.monotonic() + PATIENCE_S
        while data:
            assert time.monotonic() < give_up_s, "no one reads what is sent"
            if select.select([], [self.master], [], 0.1)[1]:
                data = data[os.write(self.master, data[:1024]) :]
            self.read(0)

    def wait(self) -> int:
        """Read on until the program ends; return its exit code."""
        give_up_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < give_up_s, "the program did not end"
            self.read(0.05)
        self.read(0)
        return self.process.returncode

    def read(self, timeout_s: float) -> None:
        while select.select([self.master], [], [], timeout_s)[0]:
            try:
                self.output += os.read(self.master, 65536)
            except OSError:
                return
            timeout_s = 0

    def is_restored(self) -> bool:
        return termios.tcgetattr(self.slave) == self.before and LEFT_ALTERNATE_SCREEN in self.output

    def hang_up(self) -> None:
        """Take the other end of the terminal away."""
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        for end in (self.master, self.slave):
            if end >= 0:
                os.close(end)
