"""A server of tools that runs here: its process, and a JSON object a line over pipes.

Nothing is read between two requests, so that a flood stays in the pipe.
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
from app.tools.mcp.transport import LOOK_S, Fault, Messages, Wait, too_much

_READ_BYTES = 1 << 16
_LARGEST_LINES = 8
"""Limit on a line that is read to its end and dropped.

It is a multiple of the largest line that is kept.
"""
_MOST_WORDS_BYTES = 8192
_WORDS_S = 1.0
"""Limits on reading the last words of a server that has ended."""
_MOST_WORD_LINES = 3
_MOST_WORD_CHARS = 120
_ENDING_S = 1.0
"""What the guard takes to end everything is a hundredth of it."""
_NO_WORDS = ("Traceback (most recent call last)", "Node.js v", "usage: ")
"""Beginnings of lines that tell nothing of what went wrong."""
_INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER")
"""Variables that a server gets in addition to its own: keys of other programs are no business of
it."""


class Pipe:
    """A process from ``open`` to ``close``. No shell reads its command."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self._command = [os.path.expanduser(word) for word in command]
        """Program and arguments; ``~`` is the home directory, as in a shell."""
        self._environment = dict(environment or {})
        self.child: subprocess.Popen[bytes] | None = None
        """The guard, whose child the server is."""
        self._end: weakref.finalize[Any, Any] | None = None
        self._unread = bytearray()
        self.n_skipped = 0
        """Lines that were no message, since it was opened."""

    @property
    def shown(self) -> str:
        """Its command."""
        return f"command: {clean_line(' '.join(self._command), 80)}"

    @property
    def is_open(self) -> bool:
        """Whether its process lives."""
        return self.child is not None and self.child.poll() is None

    def open(self) -> None:
        """Start the process."""
        environment = {
            name: os.environ[name] for name in _INHERITED if name in os.environ
        } | self._environment
        guard = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))]
        reading, writing = os.pipe()
        try:
            self.child = subprocess.Popen(
                [*guard, str(reading), *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,  # of the guard: the server's last words
                env=environment,
                pass_fds=(reading,),
                start_new_session=True,  # Ctrl+C in the terminal must not reach it
                bufsize=0,
            )
        except (OSError, ValueError) as error:
            os.close(writing)
            raise Fault(f"cannot be started: {error}") from None
        finally:
            os.close(reading)
        self._end = weakref.finalize(self, _end, self.child, writing)
        assert self.child.stdin is not None
        os.set_blocking(self.child.stdin.fileno(), False)

    def close(self) -> None:
        """End the process and its children."""
        if self._end is not None:
            self._end()
        self.child = self._end = None
        self._unread.clear()
        self.n_skipped = 0

    def note_version(self, version: str) -> None:
        """Nothing depends on it."""

    def send(self, message: Mapping[str, Any], wait: Wait) -> None:
        """Write a line."""
        assert self.child is not None
        assert self.child.stdin is not None
        pipe = self.child.stdin.fileno()
        left = memoryview(json.dumps(message).encode() + b"\n")
        while left:
            self._look(wait)
            if select.select([], [pipe], [], LOOK_S)[1]:
                try:
                    left = left[os.write(pipe, left) :]
                except BlockingIOError:
                    continue
                except OSError:
                    raise self._ended() from None

    def ask(self, message: Mapping[str, Any], wait: Wait, most_bytes: int) -> Iterator[Messages]:
        """Write a line, then yield the messages of each line that comes."""
        self.send(message, wait)
        room = most_bytes
        while True:
            line = self._read_line(wait, room, most_bytes)
            room -= len(line) + 1
            yield self._messages(line)

    def _messages(self, line: bytes) -> Messages:
        """Return the messages of a line; none where a program has written something else there, as
        many do."""
        if line.startswith(FAILED):
            raise Fault(f"cannot be started: {clean_line(line[1:].decode(errors='replace'), 120)}")
        try:
            said = json.loads(line.decode("utf-8", "replace").lstrip("\ufeff"))
        except (ValueError, RecursionError):
            said = None
        if isinstance(said, list):
            batch = said
        else:
            batch = [said]
        found = [one for one in batch if isinstance(one, dict)]
        self.n_skipped += bool(line.strip()) and not found
        return found

    def _read_line(self, wait: Wait, room: int, most_bytes: int) -> bytes:
        assert self.child is not None
        assert self.child.stdout is not None
        pipe = self.child.stdout.fileno()
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            if searched > most_bytes:
                self._drop_line(wait, most_bytes)
                raise too_much(most_bytes)
            self._look(wait)
            if not select.select([pipe], [], [], LOOK_S)[0]:
                continue
            self._unread += self._read_piece(pipe)
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        if end > most_bytes:
            raise too_much(most_bytes)
        if end > room:
            raise Fault(str(too_much(most_bytes)))
        return line

    def _read_piece(self, pipe: int) -> bytes:
        """Return the next bytes. Raises Fault: the server has ended."""
        piece = os.read(pipe, _READ_BYTES)
        if not piece:
            raise self._ended()
        return piece

    def _drop_line(self, wait: Wait, most_bytes: int) -> None:
        """Read the line that has begun to its end, so that the server can be asked on.

        Raises:
            Fault: it has no end.
        """
        assert self.child is not None
        assert self.child.stdout is not None
        pipe = self.child.stdout.fileno()
        n_bytes = 0
        while (end := self._unread.find(b"\n")) < 0:
            n_bytes += len(self._unread)
            self._unread.clear()
            if n_bytes > most_bytes * _LARGEST_LINES:
                raise Fault(str(too_much(most_bytes)))
            self._look(wait)
            if select.select([pipe], [], [], LOOK_S)[0]:
                self._unread += self._read_piece(pipe)
        del self._unread[: end + 1]

    def _ended(self) -> Fault:
        """Return the fault of a server that has ended, with its last words on standard error."""
        words = _last_words(self._read_words())
        return Fault(f"has ended: {words}" if words else "has ended")

    def _read_words(self) -> bytes:
        """Return what the guard passes on of the server's standard error, before it ends too."""
        assert self.child is not None
        assert self.child.stderr is not None
        pipe = self.child.stderr.fileno()
        words = bytearray()
        deadline_s = time.monotonic() + _WORDS_S
        while len(words) < _MOST_WORDS_BYTES:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
                break
            piece = os.read(pipe, _READ_BYTES)
            if not piece:
                break
            words += piece
        return bytes(words)

    def _look(self, wait: Wait) -> None:
        try:
            wait.look()
        except Fault as fault:
            if self.n_skipped:
                skipped = f" ({self.n_skipped} of its lines were no JSON)"
            else:
                skipped = ""
            raise Fault(f"{fault}{skipped}") from None


def _last_words(raw: bytes) -> str:
    """Return the last lines that a server wrote to its standard error, as one line.

    Frames of a stack are left out.
    """
    lines = raw.decode("utf-8", "replace").splitlines()
    words = [
        clean_line(line, _MOST_WORD_CHARS)
        for line in lines
        if line[:1].strip() and any(map(str.isalpha, line)) and not line.startswith(_NO_WORDS)
    ]
    return "; ".join(words[-_MOST_WORD_LINES:])


def _end(child: subprocess.Popen[bytes], lifeline: int) -> None:
    """Let the guard end the server and all its descendants; one that hangs is ended with its
    group."""
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
