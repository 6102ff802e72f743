"""Input of the terminal: keys, reports, pasted text, and keys typed before the screen was up.

In Textual 8.2, an ESC in a paste presses keys, and a byte that is not UTF-8 ends the program. Here
pastes are removed from the bytes before Textual's parser sees them, and the parser gets complete
sequences only, of those that it may see (``terminal_reports``). Remove the part about pastes when
the parser ends them only at their end mark, and ``TerminalDriver`` when Textual's driver decodes
with replacement.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import selectors
import signal
import struct
import termios
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

from textual import constants
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Paste
from textual.message import Message

from app.program.screen_size import bounded_size
from app.text.clean_text import clean_text
from app.tui.chat.draft import MAX_PASTE_CHARS
from app.tui.chat.messages import PasteRefused, PasteUnended
from app.tui.terminal_graphics import (
    GraphicsAnswer,
    TerminalGraphics,
    cell_size,
    is_answer,
    may_ask,
)
from app.tui.terminal_reports import (
    AMBIGUOUS_STARTS,
    ESC,
    MAX_SEQUENCE_BYTES,
    STRING_STARTS,
    is_reply,
    sequence_end,
    textual_sequence,
)

_PASTE_BEGIN: Final = b"\x1b[200~"
_PASTE_END: Final = b"\x1b[201~"
_LAST_LINE_END = re.compile(
    rb"\n(?=(?:\x1b\[[0-?]*[ -/]*[@-~]|\x1b[]P_][^\x07\x1b\n]*(?:\x07|\x1b\\))*\Z)"
)
REPLY_PATIENCE_S = 1.0
"""Seconds without a byte after which an unfinished answer of the terminal is dropped."""
KEYS_PATIENCE_S = 0.3
"""Seconds without a byte after which an unfinished sequence counts as keys."""

MAX_PASTE_BYTES = 4 * (MAX_PASTE_CHARS + 1)
"""Limit on a paste in bytes, above ``MAX_PASTE_CHARS`` characters of four bytes; the rest is
dropped."""
PASTE_PATIENCE_S = 3.0
"""Seconds without a byte after which an unfinished paste is delivered; later bytes still belong to
it."""
KEY_PAUSE_S = 0.5
"""Seconds without a byte after a single key that end an unfinished paste.

The key and everything after it count as keys, because pasted text has no such pauses.
"""
_ONE_KEY = re.compile(
    rb"\x1b|\x1b?[^\x1b]|[\xc2-\xf4][\x80-\xbf]{1,3}|\x1bO[A-Za-z]|\x1b\[[0-9;:]{0,12}[A-Za-z~]",
    re.DOTALL,
)

_SEVERAL_LINES = re.compile(
    rb"[\t\n\r ]*[^\x00-\x20\x7f][^\x00-\x08\x0b-\x1f\x7f]*\r[\t\n\r ]*[^\x00-\x20\x7f]"
)
"""Two lines with text, which nobody types within one read of the terminal."""
MAX_TYPED_BYTES = 1024
"""Limit on the keys of one read; longer text counts as a paste."""
_TEXT_ONLY = re.compile(rb"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*")
BURST_PAUSE_S = 0.1
"""Seconds without a byte after which a paste without marks has ended.

Such a paste may arrive in several reads.
"""
_CONTROL_REST = re.compile(rb"\[[0-9:;<=>?]*[ -/]*(?:[A-Za-z~^$@]|\Z)|O[A-DFHMPQRSj-y]\Z")
_WHOLE_REST = re.compile(
    rb"(?:\[[0-9:;<=>?]*[ -/]*(?:[A-Za-z~^$@](?=\x1b|\Z)|\Z)|O[A-DFHMPQRSj-y](?=\x1b|\Z))"
)
"""Sequences that may follow an ESC that already counted as a key; the second pattern allows no
keys behind them."""
_LEAST_REST_BYTES = 2
_MAX_INCOMPLETE_BYTES = 32
"""Limit on an unfinished sequence that later bytes may complete."""

_TICK_PERIOD_S = 0.1
_READ_BYTES = 1 << 16


class TerminalInput:
    """Converter from bytes of a terminal to Textual's messages.

    Args:
        clock: a monotonic clock.
        debug: whether Textual's parser writes its log.

    Attributes:
        takes_answers: returns whether answers about graphics are messages; otherwise they are
            dropped like other reports.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, debug: bool = False) -> None:
        self._clock = clock
        self.takes_answers: Callable[[], bool] = lambda: False
        self._keys = XTermParser(debug)
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._incomplete = b""
        """Unfinished sequence."""
        self._given_up = b""
        """Unfinished sequence that timed out and counted as a key or was dropped."""
        self._is_in_burst = False
        """Whether a terminal that does not mark pastes is pasting lines."""
        self._paste_bytes: bytearray | None = None
        """Bytes of the running paste that are not delivered yet; None outside a paste."""
        self._is_partly_delivered = False
        """Whether a part of the running paste was delivered."""
        self._n_end_bytes = 0
        """Bytes at the end of the paste that may be the start of its end mark."""
        self._last_byte_s = clock()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Convert bytes that were read."""
        if not data:
            return
        quiet_s = self._clock() - self._last_byte_s
        self._last_byte_s = self._clock()
        if quiet_s >= BURST_PAUSE_S:
            self._is_in_burst = False
        given_up = self._given_up
        self._given_up = b""
        if given_up and self._is_continued(given_up, data, quiet_s):
            self._incomplete = given_up  # it was only delayed
        data = self._incomplete + data
        self._incomplete = b""
        while data:
            data = yield from (
                self._feed_keys(data) if self._paste_bytes is None else self._feed_paste(data)
            )

    def _is_continued(self, given_up: bytes, data: bytes, quiet_s: float) -> bool:
        """Whether new bytes continue a sequence that was delayed and given up."""
        sequence = given_up + data
        if sequence.startswith(_PASTE_BEGIN):
            return True
        if quiet_s >= REPLY_PATIENCE_S:
            return False
        if is_reply(sequence) or len(given_up) > len(ESC):
            return is_reply(sequence) or _CONTROL_REST.match(sequence, len(ESC)) is not None
        # The rest of a sequence arrives in one read; a person types a bracket after Esc alone.
        return len(data) >= _LEAST_REST_BYTES and _WHOLE_REST.match(data) is not None

    def feed_typed_ahead(self, data: bytes) -> Iterator[Message]:
        r"""Convert bytes that were typed before the terminal sent Enter as ``\r``.

        Only the last line end counts as Enter: pasted lines came without marks and must not be sent
        one by one. Reports of the terminal may follow it.
        """
        if self._paste_bytes is None and (end := _LAST_LINE_END.search(data)):
            data = data[: end.start()] + b"\r" + data[end.start() + 1 :]
        return self.feed(data)

    def tick(self) -> Iterator[Message]:
        """Handle timeouts; call this every tenth of a second."""
        quiet_s = self._clock() - self._last_byte_s
        if self._paste_bytes is not None:
            yield from self._tick_paste(self._paste_bytes, quiet_s)
        elif self._incomplete in AMBIGUOUS_STARTS and quiet_s >= constants.ESCAPE_DELAY:
            self._given_up = self._incomplete
            self._incomplete = b""
            yield from self._type(self._given_up)
        elif self._incomplete and quiet_s >= (
            REPLY_PATIENCE_S if is_reply(self._incomplete) else KEYS_PATIENCE_S
        ):
            sequence = self._incomplete
            self._incomplete = b""
            may_continue = (
                sequence.startswith((ESC + b"[", ESC + b"O"))
                and len(sequence) <= _MAX_INCOMPLETE_BYTES
            )
            if may_continue:
                self._given_up = sequence
            else:
                self._given_up = b""
            if sequence.startswith(STRING_STARTS) and not is_reply(sequence):
                yield from self._type(sequence[:2])
                yield from self.feed(sequence[2:])
        yield from self._keys.tick()

    def _feed_keys(self, data: bytes) -> Generator[Message, None, bytes]:
        """Convert keys and reports up to the start of a paste; return the bytes after that."""
        index = 0
        while (start := data.find(ESC, index)) >= 0:
            if start > index:
                yield from self._type_text(data[index:start])
            index = sequence_end(data, start)
            if not index:
                self._incomplete = data[start:]
                if len(self._incomplete) > MAX_SEQUENCE_BYTES:
                    self._incomplete = self._incomplete[:2] + b"?" + self._incomplete[-1:]
                return b""
            if data[start:index] == _PASTE_BEGIN:
                self._paste_bytes = bytearray()
                return data[index:]
            yield from self._type(data[start:index])
        if index < len(data):
            yield from self._type_text(data[index:], is_whole=False)
        return b""

    def _type_text(self, data: bytes, is_whole: bool = True) -> Iterator[Message]:
        """Convert text of one read: keys, or lines from a terminal that does not mark pastes."""
        is_burst = (
            self._is_in_burst
            or len(data) > MAX_TYPED_BYTES
            or _SEVERAL_LINES.match(data) is not None
        )
        if not (is_burst and _TEXT_ONLY.fullmatch(data)):
            yield from self._type(data, is_whole)
            return
        self._is_in_burst = True
        text = self._decoder.decode(data, is_whole)
        if text:
            yield _paste_message(text)

    def _type(self, data: bytes, is_whole: bool = True) -> Iterator[Message]:
        """Pass text or a sequence to Textual; ``is_whole`` means that nothing continues it."""
        if data.startswith(ESC) and self.takes_answers() and is_answer(data):
            yield GraphicsAnswer(data)
        if data.startswith(ESC):
            text = self._decoder.decode(b"", is_whole) + textual_sequence(data)
        else:
            text = self._decoder.decode(data, is_whole)
        if text:  # Textual takes an empty text as the end of all input
            yield from self._keys.feed(text)
        if self._keys._timeout_time is not None:
            self._keys._timeout_time = 0.0
            yield from self._keys.tick()

    def _feed_paste(self, data: bytes) -> Generator[Message, None, bytes]:
        """Take bytes of the running paste; return the bytes after its end."""
        assert self._paste_bytes is not None
        overlap = len(_PASTE_END) - 1
        searched = max(0, len(self._paste_bytes) - overlap)
        self._paste_bytes += data
        end = self._paste_bytes.find(_PASTE_END, searched)
        if end < 0:
            del self._paste_bytes[
                MAX_PASTE_BYTES : max(MAX_PASTE_BYTES, len(self._paste_bytes) - overlap)
            ]
            return b""
        paste = self._paste_bytes[:end]
        following_bytes = bytes(self._paste_bytes[end + len(_PASTE_END) :])
        self._paste_bytes = None
        self._is_partly_delivered = False
        self._n_end_bytes = 0
        if paste:
            yield _paste(paste)
        return following_bytes

    def _tick_paste(self, paste_bytes: bytearray, quiet_s: float) -> Iterator[Message]:
        """Deliver an unfinished paste after a pause, and end it if a single key follows."""
        if self._is_partly_delivered:
            patience_s = KEY_PAUSE_S
        else:
            patience_s = PASTE_PATIENCE_S
        if quiet_s < patience_s or (
            self._is_partly_delivered and len(paste_bytes) == self._n_end_bytes
        ):
            return
        if self._is_partly_delivered and _ONE_KEY.fullmatch(paste_bytes):
            self._paste_bytes = None
            self._is_partly_delivered = False
            self._n_end_bytes = 0
            yield from self.feed(bytes(paste_bytes))
            return
        self._n_end_bytes = next(
            (n for n in range(len(_PASTE_END), 0, -1) if paste_bytes.endswith(_PASTE_END[:n])), 0
        )
        complete = paste_bytes[: len(paste_bytes) - self._n_end_bytes]
        del paste_bytes[: len(complete)]
        if complete:
            yield _paste(complete)
        if not self._is_partly_delivered:
            self._is_partly_delivered = True
            yield PasteUnended()


def _paste(paste_bytes: bytes | bytearray) -> Message:
    return _paste_message(paste_bytes.decode("utf-8", "replace"))


def _paste_message(text: str) -> Message:
    """Return a paste with plain line breaks and visible control characters."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > MAX_PASTE_CHARS:
        return PasteRefused()
    return Paste(clean_text(text))


class TerminalDriver(LinuxDriver):
    """Textual's driver with ``TerminalInput`` between it and the terminal."""

    def __init__(
        self,
        app: App[Any],
        *,
        debug: bool = False,
        mouse: bool = True,
        size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._size = size or self._get_terminal_size()
        # It outlives suspensions, so that an interrupted paste stays a paste.
        self._input = TerminalInput(debug=debug)
        self.keeps_pending_input = False
        """Whether pending input survives while input is disabled; Textual would drop it."""
        self.graphics = TerminalGraphics(super().write, self._read_cell_size, may_ask())
        """Pictures that the terminal shows as such."""
        self._input.takes_answers = lambda: self.graphics.is_asked

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return the size of the terminal within limits, because each cell takes memory."""
        return bounded_size(*super()._get_terminal_size())

    def _read_cell_size(self) -> tuple[int, int] | None:
        """Return width and height of a cell in pixels; None if the system does not know."""
        try:
            size = fcntl.ioctl(self.fileno, termios.TIOCGWINSZ, bytes(8))
        except OSError:
            return None
        rows, columns, width, height = struct.unpack("4H", size)
        return cell_size(columns, rows, width, height)

    def write(self, data: str) -> None:
        """Write to the terminal, with pictures in its own form."""
        super().write(self.graphics.expand(data))

    def start_application_mode(self) -> None:
        """Take the terminal, and send the pictures that it is to hold."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        if self._writer_thread is not None:
            self.graphics.restore()

    def stop_application_mode(self) -> None:
        """Give the terminal back without pictures in its memory."""
        self.graphics.release()
        super().stop_application_mode()

    def disable_input(self) -> None:
        """Stop the reading thread."""
        if not self.keeps_pending_input:
            super().disable_input()
        elif not self.exit_event.is_set():
            self.exit_event.set()
            if self._key_thread is not None:
                self._key_thread.join()
            self.exit_event.clear()

    def _run_input_thread(self) -> None:
        try:
            self.run_input_thread()
        except BaseException as error:
            self._app.call_later(_fail, error)

    def run_input_thread(self) -> None:
        """Read until input is disabled or the terminal is gone."""
        with selectors.SelectSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            self._process(self._input.feed_typed_ahead(_read_waiting(self.fileno)))
            while not self.exit_event.is_set():
                if selector.select(_TICK_PERIOD_S):
                    data = _read(self.fileno)
                    # The system only signals processes whose controlling terminal this is.
                    if not data:
                        os.kill(os.getpid(), signal.SIGHUP)
                        return
                    self._process(self._input.feed(data))
                self._process(self._input.tick())

    def _process(self, messages: Iterator[Message]) -> None:
        for message in messages:
            self.process_message(message)


def _read(handle: int) -> bytes:
    """Return the next bytes from a terminal; empty if the terminal is gone."""
    try:
        return os.read(handle, _READ_BYTES)
    except OSError as error:
        if error.errno == errno.EIO:
            return b""
        raise


def _read_waiting(handle: int) -> bytes:
    try:
        (n_bytes,) = struct.unpack("i", fcntl.ioctl(handle, termios.FIONREAD, bytes(4)))
    except OSError:
        return b""
    if n_bytes > 0:
        return os.read(handle, n_bytes)
    return b""


def _fail(error: BaseException) -> None:
    raise error
