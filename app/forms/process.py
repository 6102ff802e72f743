"""Starts the process that says which tokens go on with forms (``app.forms.sandbox``), and talks
with its children.

The process is kept while a model is open; each form has a child of its own, with limits. It ends
with its channel: when the form is done, when somebody stops it, and when this process ends, however
that happens.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from app.forms.answer_form import AnswerForm, FormError
from app.forms.sandbox import (
    ENDED,
    FORM,
    FRAME,
    IDS,
    MOST_FRAME_BYTES,
    NOTES,
    REFUSED,
    TEXT,
    ids_bytes,
)
from app.program.paths import own_module
from engine.errors import EngineError, shown

POLL_S = 0.05
"""Seconds between two looks at whether the answer is still wanted."""
_READ_BYTES = 1 << 16

Waiting = Callable[[], object]
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class FormLimits:
    """Limits on one form.

    Attributes:
        compile_cpu_s: processor time until it can be used, in seconds.
        step_cpu_s: processor time after each token, in seconds.
        memory_bytes: address space on top of what the vocabulary takes.
        wall_s: time to wait for an answer, in seconds; generous, since the machine may be busy or
            swapping.
    """

    compile_cpu_s: float = 5.0
    step_cpu_s: float = 2.0
    memory_bytes: int = 256 << 20
    wall_s: float = 60.0


class FormProcess:
    """The process, started when it is first needed and again where it has ended.

    Args:
        vocabulary: of the model, packed; empty for checks alone.
    """

    def __init__(self, vocabulary: bytes = b"", limits: FormLimits | None = None) -> None:
        self.limits = limits or FormLimits()
        self._vocabulary = vocabulary
        self._child: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._stop: weakref.finalize[Any, Any] | None = None

    def open(self, name: str, encode: Encode, waiting: Waiting) -> FormChannel:
        """Return a channel to a child for one form.

        Args:
            name: of the form, for messages.
            encode: returns the tokens of a text in the midst of a reply.
            waiting: called now and then while an answer is waited for; what it raises ends that.

        Raises:
            EngineError: the system refused to start the process.
        """
        for _ in range(2):
            self._start(waiting)
            assert self._control is not None
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    socket.send_fds(self._control, [b"+"], [theirs.fileno()])
                except OSError:  # it has ended since
                    ours.close()
                    self.close()
                    continue
            return FormChannel(self, ours, name, encode, waiting)
        raise EngineError("the process that keeps answers in their form ends at once")

    def close(self) -> None:
        """End the process and all its children."""
        if self._stop is not None:
            self._stop()
        self._child = self._control = self._stop = None

    def _start(self, waiting: Waiting) -> None:
        if self._child is not None and self._child.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._child = subprocess.Popen(
                    own_module("app.forms.sandbox"),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl+C in the terminal must not reach it
                )
        except OSError as error:
            ours.close()
            raise EngineError(
                f"cannot start the process that keeps answers in their form: {error}"
            ) from error
        self._control = ours
        self._stop = weakref.finalize(self, _end, self._child, ours)
        try:
            with suppress(OSError):  # it has ended already: that is seen where it is asked
                send_all(
                    ours,
                    FRAME.pack(0, len(self._vocabulary)) + self._vocabulary,
                    waiting,
                    self.limits.wall_s,
                )
        except BaseException:
            self.close()  # it waits for the rest
            raise


def _end(child: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()  # on which it ends its children
    with suppress(subprocess.TimeoutExpired):
        child.wait(0.2)
        return
    child.kill()
    child.wait()


class FormChannel:
    """Messages to and from the child of one form. Used by one thread."""

    def __init__(
        self,
        process: FormProcess,
        channel: socket.socket,
        name: str,
        encode: Encode,
        waiting: Waiting,
    ) -> None:
        self._process = process  # which ends where no one has it any more
        self._limits = process.limits
        self._channel = channel
        self._name = name
        self._encode = encode
        self._waiting = waiting
        channel.settimeout(POLL_S)
        self._came = bytearray()
        self._has_compiled = False
        self.notes: list[str] = []
        """Lines about what the form says and is not followed."""

    def begin(self, form: AnswerForm, begun: Sequence[int] = ()) -> None:
        """Have a form compiled, and the beginning of a reply taken."""
        limits = asdict(self._limits)
        message = {
            "kind": form.kind,
            "text": form.text,
            "name": form.name,
            "instead": form.instead,
            "schemas": [
                (schema.rule, schema.tool, schema.text, schema.fallback) for schema in form.schemas
            ],
            "begun": list(begun),
            **limits,
        }
        self.send(FORM, json.dumps(message).encode())

    def send(self, kind: int, payload: bytes = b"") -> None:
        """Send a message, which the child reads at once."""
        with suppress(OSError):  # how it ended is in what it sent
            send_all(
                self._channel,
                FRAME.pack(kind, len(payload)) + payload,
                self._waiting,
                self._limits.wall_s,
            )

    def receive(self) -> tuple[int, bytes]:
        """Return the next message.

        Raises:
            FormError: the form cannot be used, or its child has ended.
            Exception: whatever ``waiting`` raises.
        """
        while True:
            kind, payload = self._next()
            if kind == TEXT:
                text = payload.decode("utf-8", "replace")
                self.send(IDS, ids_bytes(self._encode(text)))
            elif kind == REFUSED:
                raise self.refused(payload.decode("utf-8", "replace"))
            elif kind == ENDED:
                raise self.refused(self._why_it_ended(payload[0] if payload else 0))
            elif kind == NOTES:
                self.notes += json.loads(payload)
            else:
                self._has_compiled = True
                return kind, payload

    def close(self) -> None:
        """End the form, and with it the child."""
        self._channel.close()

    def refused(self, why: str) -> FormError:
        """End the form, and return the error that says why."""
        self.close()
        return FormError(self._name, shown(why, 200))

    def _why_it_ended(self, number: int) -> str:
        if number == getattr(signal, "SIGPROF", None):
            if self._has_compiled:
                limit_s = self._limits.step_cpu_s
            else:
                limit_s = self._limits.compile_cpu_s
            return f"cannot be used: it takes more than {limit_s:g} s of processor time"
        return (
            f"cannot be used: it is nested too deeply, or needs more than "
            f"{self._limits.memory_bytes >> 20} MB"
        )

    def _next(self) -> tuple[int, bytes]:
        deadline_s = time.monotonic() + self._limits.wall_s
        while True:
            if len(self._came) >= FRAME.size:
                kind, length = FRAME.unpack_from(self._came)
                end = FRAME.size + length
                if length > MOST_FRAME_BYTES:
                    raise self.refused("cannot be used: its process answers nonsense")
                if len(self._came) >= end:
                    payload = bytes(self._came[FRAME.size : end])
                    del self._came[:end]
                    return kind, payload
            self._read_more(deadline_s)

    def _read_more(self, deadline_s: float) -> None:
        try:
            piece = self._channel.recv(_READ_BYTES)
        except TimeoutError:
            self._waiting()
            if time.monotonic() > deadline_s:
                raise self.refused(
                    f"cannot be used: it takes longer than {self._limits.wall_s:g} s"
                ) from None
            return
        except OSError:
            piece = b""
        if not piece:
            raise self.refused("cannot be used: the process that follows it has ended (try again)")
        self._came += piece


def send_all(channel: socket.socket, data: bytes, waiting: Waiting, patience_s: float) -> None:
    """Send bytes to who may be busy.

    Raises:
        OSError: no one is there, or does not read.
        Exception: whatever ``waiting`` raises.
    """
    deadline_s = time.monotonic() + patience_s
    left = memoryview(data)
    channel.settimeout(POLL_S)
    while left:
        try:
            left = left[channel.send(left) :]
        except TimeoutError:
            waiting()
            if time.monotonic() > deadline_s:
                raise
