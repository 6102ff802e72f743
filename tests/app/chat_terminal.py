"""The chat over a scripted engine, in a process of its own on a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0
ENTERED_ALTERNATE_SCREEN = b"\x1b[?1049h"
LEFT_ALTERNATE_SCREEN = b"\x1b[?1049l"

_PROGRAM = """
import sys
sys.path.insert(0, {root!r})
import app.tui.app as module
from pathlib import Path
from app.backend.options import ChatOptions
from app.program.settings import built_in_settings
from app.tui.start import run_tui
from tests.app.fake_engine import Gate, Script

script = Script(token_gate=Gate())
script.token_gate.allow(1)
options = ChatOptions(open_model=script.open_model, sampling=lambda chosen, model, mode: None)
chat = module.JalopyApp
module.JalopyApp = lambda settings, path, **kept: chat(settings, path, options=options, **kept)
{extra}
sys.exit(run_tui(built_in_settings(), Path("model.gguf")))
"""


class Terminal:
    """A program on a pseudo-terminal of 80 by 24."""

    def __init__(self, extra: str, state_home: Path) -> None:
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
        program = _PROGRAM.format(root=str(ROOT), extra=extra)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environ,
            start_new_session=True,
        )
        self.output = b""

    def read_until(self, expected: bytes) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while expected not in self.output:
            assert time.monotonic() < give_up_s, f"{expected!r} never came: {self.output[-2000:]!r}"
            self.read(0.1)

    def read_until_more(self, expected: bytes, n_before: int) -> None:
        """Read until there is more of it than before."""
        give_up_s = time.monotonic() + PATIENCE_S
        while self.output.count(expected) <= n_before:
            assert time.monotonic() < give_up_s, f"{expected!r} never came again"
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
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for end in (self.master, self.slave):
            if end >= 0:
                os.close(end)
