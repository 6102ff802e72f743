"""A tool server that runs on this machine: its process, and lines of JSON over pipes.

Nothing is read between two requests, so a flood stays in the pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.text.clean_text import clean_line
from app.tools.mcp.guard import FAILED
from app.tools.mcp.transport import CHECK_PERIOD_S, Fault, Messages, Wait, too_large

_READ_BYTES = 1 << 16
_MAX_DROPPED_LINES = 8
"""Limit on a line that is read to its end and dropped, as a multiple of the largest valid line."""
_MAX_STDERR_BYTES = 8192
_STDERR_PATIENCE_S = 1.0
"""Limit on the time for reading the standard error of a server that has ended."""
_MAX_ERROR_LINES = 3
_MAX_ERROR_LINE_CHARS = 120
_ENDING_S = 1.0
"""Time for the guard to end everything; it needs a hundredth of it."""
_UNHELPFUL = ("Traceback (most recent call last)", "Node.js v", "usage: ")
"""Beginnings of error lines that do not say what went wrong."""
_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""Environment variables that a server gets besides its own. It gets no keys of other programs."""


class Pipe:
    """Process of a server from ``open`` to ``close``. No shell interprets its command.

    Args:
        command: Program and arguments; ``~`` is the home directory, as in a shell.
        environment: Environment variables of the server.

    Attributes:
        child: The guard, whose child the server is. None if it is closed.
        n_skipped: Number of lines since ``open`` that were not messages.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = [os.path.expanduser(word) for word in command]
        self._environment = dict(environment or {})
        self.child: subprocess.Popen[bytes] | None = None
        self._kill: weakref.finalize[Any, Any] | None = None
        self._unread = bytearray()
        self.n_skipped = 0

    @property
    def label(self) -> str:
        """Command of the server."""
        return f"command: {clean_line(' '.join(self._command), 80)}"

    @property
    def is_open(self) -> bool:
        """Whether the process is alive."""
        return self.child is not None and self.child.poll() is None

    def open(self) -> None:
        """Start the process."""
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        guard = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))]
        lifeline_reader, lifeline = os.pipe()
        try:
            self.child = subprocess.Popen(
                [*guard, str(lifeline_reader), *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,  # the guard passes on the end of the server's
                env=inherited | self._environment,
                pass_fds=(lifeline_reader,),
                start_new_session=True,  # Ctrl+C in the terminal must not reach it.
                bufsize=0,
            )
        except (OSError, ValueError) as error:
            os.close(lifeline)
            raise Fault(f"cannot be started: {error}") from None
        finally:
            os.close(lifeline_reader)
        self._kill = weakref.finalize(self, _end_process, self.child, lifeline)
        assert self.child.stdin is not None
        os.set_blocking(self.child.stdin.fileno(), False)

    def close(self) -> None:
        """End the process and its children."""
        if self._kill is not None:
            self._kill()
        self.child = None
        self._kill = None
        self._unread.clear()
        self.n_skipped = 0

    def set_version(self, version: str) -> None:
        """Do nothing: the version changes nothing here."""

    def send(self, message: Mapping[str, Any], wait: Wait) -> None:
        """Write a message as a line."""
        assert self.child is not None
        assert self.child.stdin is not None
        pipe = self.child.stdin.fileno()
        unsent = memoryview(json.dumps(message).encode() + b"\n")
        while unsent:
            self._check(wait)
            _, writable, _ = select.select([], [pipe], [], CHECK_PERIOD_S)
            if not writable:
                continue
            try:
                unsent = unsent[os.write(pipe, unsent) :]
            except BlockingIOError:
                continue
            except OSError:
                raise self._end_fault() from None

    def ask(self, message: Mapping[str, Any], wait: Wait, max_bytes: int) -> Iterator[Messages]:
        """Write a message as a line, then yield the messages of each line that comes back."""
        self.send(message, wait)
        left_bytes = max_bytes
        while True:
            line = self._read_line(wait, left_bytes, max_bytes)
            left_bytes -= len(line) + 1
            yield self._parse_line(line)

    def _parse_line(self, line: bytes) -> Messages:
        """Return the messages of a line; none for other output, which many programs write."""
        if line.startswith(FAILED):
            reason = clean_line(line[1:].decode(errors="replace"), 120)
            raise Fault(f"cannot be started: {reason}")
        try:
            value = json.loads(line.decode("utf-8", "replace").lstrip("\ufeff"))
        except (ValueError, RecursionError):
            value = None
        items = value if isinstance(value, list) else [value]
        messages = [item for item in items if isinstance(item, dict)]
        if not messages and line.strip():
            self.n_skipped += 1
        return messages

    def _read_line(self, wait: Wait, left_bytes: int, max_bytes: int) -> bytes:
        """Return the next line.

        Args:
            wait: Time limit.
            left_bytes: Number of bytes that the answer may still have.
            max_bytes: Limit on a line.

        Raises:
            TooLargeError: The line is too long, but the server can get further requests.
            Fault: The answer is too long, or the server has ended.
        """
        n_searched = 0
        while (end := self._unread.find(b"\n", n_searched)) < 0:
            n_searched = len(self._unread)
            if n_searched > max_bytes:
                self._drop_line(wait, max_bytes)
                raise too_large(max_bytes)
            self._read_some(wait)

        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        if end > max_bytes:
            raise too_large(max_bytes)
        if end > left_bytes:
            raise Fault(str(too_large(max_bytes)))
        return line

    def _drop_line(self, wait: Wait, max_bytes: int) -> None:
        """Read the current line to its end and drop it, so that further requests are possible.

        Raises:
            Fault: The line does not end.
        """
        n_bytes = 0
        while (end := self._unread.find(b"\n")) < 0:
            n_bytes += len(self._unread)
            self._unread.clear()
            if n_bytes > max_bytes * _MAX_DROPPED_LINES:
                raise Fault(str(too_large(max_bytes)))
            self._read_some(wait)
        del self._unread[: end + 1]

    def _read_some(self, wait: Wait) -> None:
        """Read bytes if some arrive soon.

        Raises:
            Fault: The time is over, or the server has ended.
        """
        assert self.child is not None
        assert self.child.stdout is not None
        self._check(wait)
        pipe = self.child.stdout.fileno()
        readable, _, _ = select.select([pipe], [], [], CHECK_PERIOD_S)
        if not readable:
            return
        piece = os.read(pipe, _READ_BYTES)
        if not piece:
            raise self._end_fault()
        self._unread += piece

    def _end_fault(self) -> Fault:
        """Return the fault of a server that has ended, with the end of its standard error."""
        error = _last_error_lines(self._read_stderr())
        return Fault(f"has ended: {error}" if error else "has ended")

    def _read_stderr(self) -> bytes:
        """Return the end of the server's standard error, which the guard passes on."""
        assert self.child is not None
        assert self.child.stderr is not None
        pipe = self.child.stderr.fileno()
        stderr = bytearray()
        deadline_s = time.monotonic() + _STDERR_PATIENCE_S
        while len(stderr) < _MAX_STDERR_BYTES:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
                break
            piece = os.read(pipe, _READ_BYTES)
            if not piece:
                break
            stderr += piece
        return bytes(stderr)

    def _check(self, wait: Wait) -> None:
        try:
            wait.check()
        except Fault as fault:
            if not self.n_skipped:
                raise
            raise Fault(f"{fault} ({self.n_skipped} of its lines were not JSON)") from None


def _last_error_lines(stderr: bytes) -> str:
    """Return the last lines of standard error as one line, without the frames of a stack."""
    lines = [
        clean_line(line, _MAX_ERROR_LINE_CHARS)
        for line in stderr.decode("utf-8", "replace").splitlines()
        if line[:1].strip() and any(map(str.isalpha, line)) and not line.startswith(_UNHELPFUL)
    ]
    return "; ".join(lines[-_MAX_ERROR_LINES:])


def _end_process(child: subprocess.Popen[bytes], lifeline: int) -> None:
    """Let the guard end the server and its descendants; kill the whole group if it hangs."""
    with contextlib.suppress(OSError):
        os.close(lifeline)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if not _has_ended(child):
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        if not _has_ended(child):
            threading.Thread(target=child.wait, daemon=True).start()


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    try:
        child.wait(timeout=_ENDING_S)
    except subprocess.TimeoutExpired:
        return False
    return True
