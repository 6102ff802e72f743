"""Control of the process that renders chat templates (``engine.prompt.template_sandbox``).

The process starts early and runs until the model is closed, so a turn costs one round trip. It ends
with this process, because its stdin closes then.
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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine.errors import TemplateError, printable

READ_BYTES = 1 << 16


@dataclass(frozen=True)
class RenderLimits:
    """Limits on one rendering.

    Attributes:
        cpu_s: processor time of one rendering, in seconds.
        wall_s: wall-clock time to wait for an answer, in seconds; generous, since the machine may
            be busy or swapping.
        memory_bytes: limit on the address space of the process.
        output_chars: limit on the characters of the rendered text without the messages.
    """

    cpu_s: float = 2.0
    wall_s: float = 60.0
    memory_bytes: int = 256 << 20
    output_chars: int = 1 << 20


class TemplateProcess:
    """Renderer of templates with limits. It restarts after a template has exceeded a limit.

    Starting does not block: the other process imports its modules while this one continues.
    """

    def __init__(self, limits: RenderLimits | None = None) -> None:
        self.limits = limits or RenderLimits()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._stop: weakref.finalize[Any, Any] | None = None
        self._unread = bytearray()
        self._ready = False

    def start(self) -> None:
        """Start the process unless it is running.

        Raises TemplateError: the system refused to start it.
        """
        if self._child is not None and self._child.poll() is None:
            return
        self._discard()
        try:
            self._child = subprocess.Popen(
                _command(self.limits.memory_bytes),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl+C in the terminal must not reach it
            )
        except (OSError, ValueError) as error:
            raise TemplateError(
                f"cannot start the process that renders chat templates: {error}"
            ) from error
        self._stop = weakref.finalize(self, _end, self._child)

    def render(self, source: str, variables: dict[str, Any], now: float) -> str:
        """Render a template in the process.

        Args:
            source: Jinja source of the template.
            variables: the template's variables; JSON values.
            now: current time for the template, in seconds since 1970.

        Raises:
            TemplateError: the template failed or exceeded a limit. The message continues a sentence
                that begins with "the chat template".
        """
        inputs = variables["messages"], variables.get("tools")
        message_chars = sum(len(json.dumps(value, ensure_ascii=False)) for value in inputs)
        request: dict[str, Any] = {
            "source": source,
            "variables": variables,
            "now": now,
            "cpu_s": self.limits.cpu_s,
            "output_chars": self.limits.output_chars + 2 * message_chars,
        }
        with self._lock:
            answer = self._ask(
                json.dumps(request).encode() + b"\n", 12 * request["output_chars"] + READ_BYTES
            )
        if "text" not in answer:
            raise TemplateError(printable(str(answer.get("error", "fails")), 160))
        return str(answer["text"])

    def close(self) -> None:
        """End the process; a later request starts a new one."""
        with self._lock:
            self._discard()

    def _ask(self, request: bytes, max_bytes: int) -> dict[str, Any]:
        self.start()
        assert self._child is not None
        assert self._child.stdin is not None
        deadline = time.monotonic() + self.limits.wall_s
        try:
            if not self._ready:
                self._read_line(deadline, READ_BYTES)
                self._ready = True
            self._child.stdin.write(request)
            self._child.stdin.flush()
            answer: dict[str, Any] = json.loads(self._read_line(deadline, max_bytes))
            return answer
        except (OSError, EOFError, TimeoutError, ValueError) as error:
            reason = self._end_reason(error)
            self._discard()
            raise TemplateError(reason) from error

    def _read_line(self, deadline: float, max_bytes: int) -> bytes:
        assert self._child is not None
        assert self._child.stdout is not None
        pipe = self._child.stdout.fileno()
        searched = 0
        while (end := self._unread.find(b"\n", searched)) < 0:
            searched = len(self._unread)
            readable, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise TimeoutError
            piece = os.read(pipe, READ_BYTES)
            if not piece or len(self._unread) > max_bytes:
                raise EOFError
            self._unread += piece
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line

    def _end_reason(self, error: Exception) -> str:
        assert self._child is not None
        if isinstance(error, TimeoutError):
            return f"takes longer than {self.limits.wall_s:g} s"
        try:
            code = self._child.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "breaks the process that renders it"
        if code == -signal.SIGPROF:
            return f"takes longer than {self.limits.cpu_s:g} s of processor time"
        return f"ends the process that renders it (exit status {code})"

    def _discard(self) -> None:
        if self._stop is not None:
            self._stop()
        self._child = None
        self._stop = None
        self._unread.clear()
        self._ready = False


def _command(memory_bytes: int) -> list[str]:
    """Return the command line of the process: an isolated interpreter with the path of jinja2."""
    paths = []
    for name in ("jinja2", "markupsafe"):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            paths.append(str(Path(spec.origin).parents[1]))
    script = Path(__file__).with_name("template_sandbox.py")
    return [sys.executable, "-I", str(script), str(memory_bytes), *dict.fromkeys(paths)]


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # unsent bytes for a process that has ended
                pipe.close()
    child.wait()
