"""A program on a pseudo-terminal: keys go in, what it paints comes out, and both have times."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

PATIENCE_S = 600.0
"""A first compilation on an old machine takes minutes."""


class ProgramFailed(Exception):
    """The program ended or said nothing for too long; the message ends with what it painted
    last."""


class Terminal:
    """Runs a program until it is closed.

    Args:
        command: the program and its arguments.
        size: columns and rows.
        pass_fds: descriptors that the program inherits.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: dict[str, str],
        size: tuple[int, int],
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.output = b""
        self.started_s = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environ,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        os.close(slave)

    def press(self, keys: bytes) -> float:
        """Type; return when."""
        os.write(self._master, keys)
        return time.perf_counter()

    def read(self, timeout_s: float) -> float:
        """Read what the program painted, waiting at most ``timeout_s`` for it; return the time when
        it came."""
        if select.select([self._master], [], [], timeout_s)[0]:
            try:
                self.output += os.read(self._master, 1 << 16)
            except OSError:  # a pseudo-terminal whose program has ended
                raise self._failure("ended") from None
        return time.perf_counter()

    def read_for(self, seconds: float) -> None:
        """Read what comes in this time."""
        until_s = time.perf_counter() + seconds
        while (left_s := until_s - time.perf_counter()) > 0:
            self.read(left_s)

    def cpu_s(self) -> float:
        """CPU time of the program and of what it has started, in seconds."""
        process = psutil.Process(self._process.pid)
        times = [member.cpu_times() for member in (process, *process.children(recursive=True))]
        return sum(time.user + time.system for time in times)

    def read_until(
        self, condition: Callable[[], bool], expectation: str, patience_s: float = PATIENCE_S
    ) -> float:
        """Read on until something is true; return when the last of it was read."""
        give_up_s = time.perf_counter() + patience_s
        now_s = time.perf_counter()
        while not condition():
            now_s = self.read(0.05)
            if now_s > give_up_s:
                raise self._failure(f"waited in vain for {expectation}")
            if self._process.poll() is not None and not select.select([self._master], [], [], 0)[0]:
                raise self._failure("ended")
        return now_s

    def settle(self, quiet_s: float) -> None:
        """Read on until nothing was painted for ``quiet_s``."""
        n_bytes = -1
        while n_bytes != len(self.output):
            n_bytes = len(self.output)
            self.read(quiet_s)

    def close(self) -> None:
        """End the program."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            give_up_s = time.perf_counter() + 5.0
            while self._process.poll() is None and time.perf_counter() < give_up_s:
                try:
                    self.read(0.05)
                except ProgramFailed:
                    break
            try:
                self._process.wait(2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        os.close(self._master)

    def _failure(self, reason: str) -> ProgramFailed:
        tail = self.output[-300:].decode("utf-8", "replace")
        return ProgramFailed(f"the chat {reason}: {tail!r}")


class Events:
    """Lines of JSON from a program, through a pipe that it inherits."""

    def __init__(self) -> None:
        self._read_fd, self.write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._pending = b""
        self.seen: list[dict[str, Any]] = []

    def last(self, name: str) -> dict[str, Any] | None:
        """Return the newest event of a name."""
        try:
            while chunk := os.read(self._read_fd, 1 << 16):
                self._pending += chunk
        except BlockingIOError:
            pass
        *lines, self._pending = self._pending.split(b"\n")
        self.seen += [json.loads(line) for line in lines]
        return next((event for event in reversed(self.seen) if event["event"] == name), None)

    def close(self) -> None:
        """Close both ends."""
        os.close(self._read_fd)
        os.close(self.write_fd)
