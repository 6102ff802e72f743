"""Process that computes constraints (``app.forms.sandbox``): starting it, and messages to its
children.

The process lives as long as the model is open. Each form has a child of its own with limits. A
child ends with its channel: when the reply is done, when somebody stops it, and when Jalopy ends,
however that happens.
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
    MAX_FRAME_BYTES,
    NOTES,
    REFUSED,
    TEXT,
    pack_ids,
)
from app.program.paths import own_module
from engine.errors import EngineError, printable

POLL_S = 0.05
"""Time between two calls of ``on_wait``."""
_READ_BYTES = 1 << 16

OnWait = Callable[[], object]
"""Function to call now and then during waits; its exceptions end them."""
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class FormLimits:
    """Limits on one form.

    Attributes:
        compile_cpu_s: Processor time for compiling the form.
        step_cpu_s: Processor time after each token.
        memory_bytes: Address space in addition to that of the vocabulary.
        wall_s: Time to wait for an answer; generous, since the machine may be busy or swapping.
    """

    compile_cpu_s: float = 5.0
    step_cpu_s: float = 2.0
    memory_bytes: int = 256 << 20
    wall_s: float = 60.0


class FormProcess:
    """The process. It starts when it is first needed, and again if it has ended.

    Args:
        vocabulary: Packed vocabulary of the model; empty for checks only.
        limits: Limits on each form.
    """

    def __init__(self, vocabulary: bytes = b"", limits: FormLimits | None = None) -> None:
        self.limits = limits or FormLimits()
        self._vocabulary = vocabulary
        self._child: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._stop: weakref.finalize[Any, Any] | None = None

    def open(self, name: str, encode: Encode, on_wait: OnWait) -> FormChannel:
        """Return a channel to a child for one form.

        Args:
            name: Name of the form for messages.
            encode: Returns the tokens of a text within a reply.
            on_wait: Called now and then during waits.

        Raises:
            EngineError: The system cannot start the process.
        """
        for _ in range(2):
            self._start(on_wait)
            assert self._control is not None
            channel, child_end = socket.socketpair()
            with child_end:
                try:
                    socket.send_fds(self._control, [b"+"], [child_end.fileno()])
                except OSError:  # The process has ended.
                    channel.close()
                    self.close()
                    continue
            return FormChannel(self, channel, name, encode, on_wait)
        raise EngineError("the process for forms of answers ends immediately")

    def close(self) -> None:
        """End the process and all its children."""
        if self._stop is not None:
            self._stop()
        self._child = None
        self._control = None
        self._stop = None

    def _start(self, on_wait: OnWait) -> None:
        if self._child is not None and self._child.poll() is None:
            return
        self.close()
        control, child_end = socket.socketpair()
        try:
            with child_end:
                self._child = subprocess.Popen(
                    own_module("app.forms.sandbox"),
                    stdin=child_end.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl+C in the terminal must not reach it.
                )
        except OSError as error:
            control.close()
            raise EngineError(f"cannot start the process for forms of answers: {error}") from error
        self._control = control
        self._stop = weakref.finalize(self, _end, self._child, control)
        frame = FRAME.pack(0, len(self._vocabulary)) + self._vocabulary
        try:
            with suppress(OSError):  # If it has ended, the next message to it fails.
                send_all(control, frame, on_wait, self.limits.wall_s)
        except BaseException:
            self.close()  # It waits for the rest of the vocabulary.
            raise


def _end(child: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()  # The process then ends its children.
    with suppress(subprocess.TimeoutExpired):
        child.wait(0.2)
        return
    child.kill()
    child.wait()


class FormChannel:
    """Messages to and from the child of one form, in one thread.

    Attributes:
        notes: Lines about parts of the form that are not enforced.
    """

    def __init__(
        self,
        process: FormProcess,
        channel: socket.socket,
        name: str,
        encode: Encode,
        on_wait: OnWait,
    ) -> None:
        self._process = process  # The process ends without references to it.
        self._limits = process.limits
        self._channel = channel
        self._name = name
        self._encode = encode
        self._on_wait = on_wait
        channel.settimeout(POLL_S)
        self._received = bytearray()
        self._has_compiled = False
        self.notes: list[str] = []

    def start(self, form: AnswerForm, prefix_ids: Sequence[int] = ()) -> None:
        """Send the form, and the tokens of the beginning of a continued reply."""
        message = {
            "syntax": form.syntax,
            "text": form.text,
            "name": form.name,
            "call_rules": form.call_rules,
            "tool_schemas": [
                (schema.rule, schema.tool, schema.text, schema.fallback)
                for schema in form.tool_schemas
            ],
            "prefix_ids": list(prefix_ids),
            **asdict(self._limits),
        }
        self.send(FORM, json.dumps(message).encode())

    def send(self, message_type: int, payload: bytes = b"") -> None:
        """Send a message, which the child reads immediately."""
        frame = FRAME.pack(message_type, len(payload)) + payload
        with suppress(OSError):  # The last message of the child says why it has ended.
            send_all(self._channel, frame, self._on_wait, self._limits.wall_s)

    def receive(self) -> tuple[int, bytes]:
        """Return the type and the payload of the next message.

        Raises:
            FormError: The form cannot be used, or its child has ended.
            Exception: Any exception of ``on_wait``.
        """
        while True:
            message_type, payload = self._read_frame()
            if message_type == TEXT:
                text = payload.decode("utf-8", "replace")
                self.send(IDS, pack_ids(self._encode(text)))
            elif message_type == REFUSED:
                raise self.refuse(payload.decode("utf-8", "replace"))
            elif message_type == ENDED:
                raise self.refuse(self._end_reason(payload[0] if payload else 0))
            elif message_type == NOTES:
                self.notes += json.loads(payload)
            else:
                self._has_compiled = True
                return message_type, payload

    def close(self) -> None:
        """End the child."""
        self._channel.close()

    def refuse(self, reason: str) -> FormError:
        """End the child, and return an error with the reason."""
        self.close()
        return FormError(self._name, printable(reason, 200))

    def _end_reason(self, signal_number: int) -> str:
        if signal_number == getattr(signal, "SIGPROF", None):
            limit_s = self._limits.compile_cpu_s
            if self._has_compiled:
                limit_s = self._limits.step_cpu_s
            return f"cannot be used: it takes more than {limit_s:g} s of processor time"
        return (
            "cannot be used: it is nested too deeply, or needs more than "
            f"{self._limits.memory_bytes >> 20} MB"
        )

    def _read_frame(self) -> tuple[int, bytes]:
        deadline_s = time.monotonic() + self._limits.wall_s
        while True:
            if len(self._received) >= FRAME.size:
                message_type, length = FRAME.unpack_from(self._received)
                end = FRAME.size + length
                if length > MAX_FRAME_BYTES:
                    raise self.refuse("cannot be used: its process sends an invalid message")
                if len(self._received) >= end:
                    payload = bytes(self._received[FRAME.size : end])
                    del self._received[:end]
                    return message_type, payload
            self._read_more(deadline_s)

    def _read_more(self, deadline_s: float) -> None:
        try:
            piece = self._channel.recv(_READ_BYTES)
        except TimeoutError:
            self._on_wait()
            if time.monotonic() > deadline_s:
                raise self.refuse(
                    f"cannot be used: it takes longer than {self._limits.wall_s:g} s"
                ) from None
            return
        except OSError:
            piece = b""
        if not piece:
            raise self.refuse("cannot be used: its process has ended (try again)")
        self._received += piece


def send_all(channel: socket.socket, data: bytes, on_wait: OnWait, patience_s: float) -> None:
    """Send bytes to a process that may be busy.

    Raises:
        OSError: The process has ended or does not read.
        Exception: Any exception of ``on_wait``.
    """
    deadline_s = time.monotonic() + patience_s
    unsent = memoryview(data)
    channel.settimeout(POLL_S)
    while unsent:
        try:
            unsent = unsent[channel.send(unsent) :]
        except TimeoutError:
            on_wait()
            if time.monotonic() > deadline_s:
                raise
