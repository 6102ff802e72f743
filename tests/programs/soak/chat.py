"""The program on a pseudo-terminal, as its user has it: keys go in, a screen comes out, signals
come from outside."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.programs.soak.screen import Screen

PATIENCE_S = 120.0
START_PATIENCE_S = 900.0
"""A first compilation on an old machine takes minutes."""
GONE_S = 20.0
"""Seconds that a process may outlive its end: the parent gives its child 4 s, and the machine may
be busy."""
_TAIL_BYTES = 1 << 16
_BROKEN = (b"Traceback (most recent call last)", b"internal error")
_SHELL = Path(__file__).with_name("shell.py")
ESCAPE = b"\x1b[27u"
"""Escape as sent with the Kitty protocol: a key right after it cannot turn it into another key."""


class Failed(Exception):
    """Something did not hold; the message says what."""


class Chat:
    """Run of the program from its start to its end.

    Attributes:
        screen: what is painted.
        supervisor, child: the two processes of the program.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], cwd: Path, size: tuple[int, int]
    ) -> None:
        self.screen = Screen(*size)
        self.output_tail = b""
        self._broken: bytes | None = None
        self._master, self._slave = pty.openpty()
        self._set_size(*size)
        self._modes_before = termios.tcgetattr(self._slave)
        self._reports, their_end = socket.socketpair()
        self.reports = list[dict[str, Any]]()
        self._unread = b""
        self._shell = subprocess.Popen(
            [sys.executable, str(_SHELL), str(their_end.fileno()), *command],
            stdin=self._slave, stdout=self._slave, stderr=self._slave, env=dict(environ), cwd=cwd,
            pass_fds=(their_end.fileno(),), start_new_session=True,
        )  # fmt: skip
        their_end.close()
        os.set_blocking(self._master, False)
        self._reports.setblocking(False)
        self.wait_for(lambda: bool(self.reports), "the start of the program")
        self.supervisor = psutil.Process(self.reports[0]["started"])
        self._child: psutil.Process | None = None
        self._family: dict[int, psutil.Process] = {self.supervisor.pid: self.supervisor}

    # ---- processes

    @property
    def child(self) -> psutil.Process:
        """The process that is the chat; its parent only waits for it."""
        if self._child is None:
            self.wait_for(lambda: bool(self.supervisor.children()), "the child process")
            self._child = self.supervisor.children()[0]
        return self._child

    def note_family(self) -> None:
        """Remember every process of the program, to see later that all are gone."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in (self.supervisor, *self.supervisor.children(recursive=True)):
                self._family[process.pid] = process

    def left_behind(self) -> list[psutil.Process]:
        """Return processes of the program that still live."""
        return [
            p
            for p in self._family.values()
            if p.is_running() and p.status() != psutil.STATUS_ZOMBIE
        ]

    @property
    def exit_code(self) -> int | None:
        """Exit status; negative for a signal, None while the program runs."""
        return next((report["ended"] for report in self.reports if "ended" in report), None)

    def count(self, report: str) -> int:
        """Return how often the shell saw the program stopped or continued."""
        return sum(report in entry for entry in self.reports)

    def wait_for_end(self) -> int:
        """Return the exit code, once the program and all its processes are gone."""
        self._wait(
            lambda: self.exit_code is not None, "the end of the program", PATIENCE_S, may_end=True
        )
        code = self.exit_code
        assert code is not None
        return code

    def wait_for_family_end(self) -> list[psutil.Process]:
        """Give every process of the program time to end; return those that stay."""
        give_up_s = time.monotonic() + GONE_S
        while (processes := self.left_behind()) and time.monotonic() < give_up_s:
            self.pump(0.1)
        return processes

    # ---- the terminal

    def press(self, keys: bytes | str) -> None:
        """Type, reading meanwhile: a program that must paint before it reads on does not stand
        still."""
        remaining = keys.encode() if isinstance(keys, str) else keys
        give_up_s = time.monotonic() + PATIENCE_S
        while remaining and self._master >= 0:
            try:
                remaining = remaining[os.write(self._master, remaining[:1024]) :]
            except BlockingIOError:
                self.pump(0.02)
            except OSError:
                return
            if time.monotonic() > give_up_s:
                raise Failed("the program does not read its keys")
            self.pump(0)

    def resize(self, columns: int, rows: int) -> None:
        """Give the terminal another size."""
        self.pump(0)
        self.screen.resize(columns, rows)
        self._set_size(columns, rows)

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def pump(self, timeout_s: float) -> bool:
        """Take what the program paints and the shell reports; return whether anything came."""
        handles = [handle for handle in (self._master, self._reports.fileno()) if handle >= 0]
        readable = select.select(handles, [], [], timeout_s)[0]
        if self._master in readable:
            try:
                output = os.read(self._master, 1 << 16)
            except OSError:
                output = b""
            self._take(output)
        if self._reports.fileno() in readable:
            with contextlib.suppress(BlockingIOError):
                self._unread += self._reports.recv(1 << 16)
            *lines, self._unread = self._unread.split(b"\n")
            self.reports += [json.loads(line) for line in lines]
        return bool(readable)

    def _take(self, output: bytes) -> None:
        joined = self.output_tail[-100:] + output
        self._broken = self._broken or next((sign for sign in _BROKEN if sign in joined), None)
        self.output_tail = (self.output_tail + output)[-_TAIL_BYTES:]
        self.screen.feed(output)

    def look_for_errors(self) -> None:
        """Fail where a traceback or an internal error was painted."""
        if self._broken:
            raise Failed(f"on the terminal stood: {self._broken.decode()}")

    def wait_for(
        self, condition: Callable[[], bool], expectation: str, patience_s: float = PATIENCE_S
    ) -> None:
        """Read on until something is true, of a program that goes on running."""
        self._wait(condition, expectation, patience_s, may_end=False)

    def becomes(self, condition: Callable[[], bool], patience_s: float) -> bool:
        """Read on until something is true or the time is over; return which."""
        give_up_s = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > give_up_s or self.exit_code is not None:
                return condition()
            self.pump(0.05)
        return True

    def _wait(
        self, condition: Callable[[], bool], expectation: str, patience_s: float, may_end: bool
    ) -> None:
        give_up_s = time.monotonic() + patience_s
        while not condition():
            self.pump(0.05)
            self.look_for_errors()
            if self.exit_code is not None and not may_end:
                self.settle(0.2)
                self.look_for_errors()
                raise Failed(
                    f"the program ended with {self.exit_code} while waiting for {expectation}"
                )
            if time.monotonic() > give_up_s:
                raise Failed(f"{expectation} did not come within {patience_s:.0f} s")

    def settle(self, quiet_s: float = 0.15, most_s: float = 2.0) -> None:
        """Read on until nothing came for a while."""
        give_up_s = time.monotonic() + most_s
        while time.monotonic() < give_up_s and self.pump(quiet_s):
            pass

    def leaves_undone(self, is_shells: bool = False) -> list[str]:
        """Return what of the terminal is not as it was before.

        Args:
            is_shells: the line's modes are for the shell to restore, as after a job that was
                killed.
        """
        self.settle()
        modes = self.screen.modes_left()
        if not is_shells and termios.tcgetattr(self._slave) != self._modes_before:
            modes.append("the line's modes are others than before")
        return modes

    def close_terminal(self) -> None:
        """Take the terminal away, as closing its window does."""
        os.close(self._slave)
        os.close(self._master)
        self._master = self._slave = -1

    def close(self) -> None:
        """Let nothing live on, however the run went."""
        self.note_family()
        for process in self.left_behind():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
                process.kill()
        self._reports.close()
        try:
            self._shell.wait(5.0)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait()
        for handle in (self._master, self._slave):
            if handle >= 0:
                os.close(handle)
        self._master = self._slave = -1
