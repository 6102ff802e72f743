"""Input of the terminal, told apart: keys and reports, pasted text, and keys typed before the
screen was up.

Textual 8.2 lets an ESC inside a paste press keys, and ends over one byte that is not UTF-8. Here a
paste is taken out of the bytes before Textual's parser sees it, and that sees one whole sequence
after the other, of those that it should (``terminal_reports``). Remove the part about pastes when
that parser ends them at their end mark only, and ``TerminalDriver`` when its driver decodes with
replacement as well.
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
from app.tui.terminal_reports import (
    ESC,
    KEYS_TOO,
    MOST_SEQUENCE_BYTES,
    STRING_BEGINNINGS,
    harmless,
    is_reply,
    sequence_end,
)

_PASTE_BEGIN: Final = b"\x1b[200~"
_PASTE_END: Final = b"\x1b[201~"
_LAST_LINE_END = re.compile(
    rb"\n(?=(?:\x1b\[[0-?]*[ -/]*[@-~]|\x1b[]P_][^\x07\x1b\n]*(?:\x07|\x1b\\))*\Z)"
)
REPLY_PATIENCE_S = 1.0
"""Seconds without a byte after which an answer of the terminal that has no end is dropped."""
KEYS_PATIENCE_S = 0.3
"""The same for what may be keys after all: then it counts as such."""

MOST_PASTE_BYTES = 4 * (MAX_PASTE_CHARS + 1)
"""Limit on a paste; the rest is dropped. At four bytes a character it is more than
``MAX_PASTE_CHARS``."""
PASTE_PATIENCE_S = 3.0
"""Seconds without a byte after which the beginning of a paste is handed over; later bytes are still
part of it."""
KEY_PAUSE_S = 0.5
"""Seconds of silence after a single key that end the paste: the key and what follows it are keys.
Text contains no such pause, and a paste that was only held up continues or ends."""
_ONE_KEY = re.compile(
    rb"\x1b|\x1b?[^\x1b]|[\xc2-\xf4][\x80-\xbf]{1,3}|\x1bO[A-Za-z]|\x1b\[[0-9;:]{0,12}[A-Za-z~]",
    re.DOTALL,
)

_SEVERAL_LINES = re.compile(
    rb"[\t\n\r ]*[^\x00-\x20\x7f][^\x00-\x08\x0b-\x1f\x7f]*\r[\t\n\r ]*[^\x00-\x20\x7f]"
)
"""Two lines with something in them: no person types that within one read of the terminal."""
MOST_TYPED_BYTES = 1024
"""Limit on the keys of one read; more text is a paste, whatever is in it."""
_TEXT_ONLY = re.compile(rb"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*")
BURST_PAUSE_S = 0.1
"""Seconds of silence after which a paste without marks is over.

Such a paste may come in several reads.
"""
_CONTROL_REST = re.compile(rb"\[[0-9:;<=>?]*[ -/]*(?:[A-Za-z~^$@]|\Z)|O[A-DFHMPQRSj-y]\Z")
_WHOLE_REST = re.compile(
    rb"(?:\[[0-9:;<=>?]*[ -/]*(?:[A-Za-z~^$@](?=\x1b|\Z)|\Z)|O[A-DFHMPQRSj-y](?=\x1b|\Z))"
)
"""Sequences that may follow an ESC that has already counted as a key.

The second has the same where nothing is typed behind it.
"""
_LEAST_REST_BYTES = 2
_MOST_BEGUN_BYTES = 32
"""Limit on the beginning of a sequence whose rest is still waited for."""

_LOOK_PERIOD_S = 0.1
_READ_BYTES = 1 << 16


class TerminalInput:
    """Turns the bytes of a terminal into Textual's messages; ``debug`` lets Textual's parser write
    its log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, debug: bool = False) -> None:
        self._clock = clock
        self._keys = XTermParser(debug)
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._held = b""
        """The beginning of a sequence."""
        self._passed_on = b""
        """The same after it has counted as a key, or as nothing, because nothing followed soon."""
        self._is_in_burst = False
        """Whether lines are being pasted by a terminal that does not mark pastes."""
        self._pasted: bytearray | None = None
        """Of the running paste, what was not handed over yet."""
        self._is_unended = False
        """Whether a part of it was."""
        self._n_kept = 0
        """Bytes that were kept then, because its end may have begun."""
        self._came_s = clock()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take what was read."""
        if not data:
            return
        quiet_s = self._clock() - self._came_s
        self._came_s = self._clock()
        if quiet_s >= BURST_PAUSE_S:
            self._is_in_burst = False
        passed_on = self._passed_on
        self._passed_on = b""
        if passed_on and self._is_continued(passed_on, data, quiet_s):
            self._held = passed_on  # it was only held up on its way
        data = self._held + data
        self._held = b""
        while data:
            data = yield from (
                self._take_typed(data) if self._pasted is None else self._take_pasted(data)
            )

    def _is_continued(self, passed_on: bytes, data: bytes, quiet_s: float) -> bool:
        """Whether what came now is the rest of a sequence.

        Its beginning was held up on its way.
        """
        whole = passed_on + data
        if whole.startswith(_PASTE_BEGIN):
            return True
        if quiet_s >= REPLY_PATIENCE_S:
            return False
        if is_reply(whole) or len(passed_on) > len(ESC):
            return is_reply(whole) or _CONTROL_REST.match(whole, len(ESC)) is not None
        # One read brings all of the rest: a person who has pressed Esc types a bracket alone.
        return len(data) >= _LEAST_REST_BYTES and _WHOLE_REST.match(data) is not None

    def feed_typed_ahead(self, data: bytes) -> Iterator[Message]:
        r"""Take what was typed before the terminal was told to send Enter as ``\r``.

        Only the last line end is Enter: lines that were pasted meanwhile came without marks, and
        must not be sent one by one. Reports of the terminal, such as that it has the focus, may
        come after it.
        """
        if self._pasted is None:
            end = _LAST_LINE_END.search(data)
        else:
            end = None
        if end is not None:
            data = data[: end.start()] + b"\r" + data[end.start() + 1 :]
        return self.feed(data)

    def tick(self) -> Iterator[Message]:
        """Note that time has passed; call it every tenth of a second."""
        quiet_s = self._clock() - self._came_s
        if self._pasted is not None:
            yield from self._look_after_paste(self._pasted, quiet_s)
        elif self._held in KEYS_TOO and quiet_s >= constants.ESCAPE_DELAY:
            self._passed_on = self._held
            self._held = b""
            yield from self._type(self._passed_on)
        elif self._held and quiet_s >= (
            REPLY_PATIENCE_S if is_reply(self._held) else KEYS_PATIENCE_S
        ):
            held = self._held
            self._held = b""
            is_begun = held.startswith((ESC + b"[", ESC + b"O")) and len(held) <= _MOST_BEGUN_BYTES
            if is_begun:
                self._passed_on = held
            else:
                self._passed_on = b""
            if held.startswith(STRING_BEGINNINGS) and not is_reply(held):
                yield from self._type(held[:2])
                yield from self.feed(held[2:])
        yield from self._keys.tick()

    def _take_typed(self, data: bytes) -> Generator[Message, None, bytes]:
        """Take all but the beginning of a paste, and what follows that, which is returned."""
        at = 0
        while (begin := data.find(ESC, at)) >= 0:
            if begin > at:
                yield from self._type_text(data[at:begin])
            at = sequence_end(data, begin)
            if not at:
                self._held = data[begin:]
                if len(self._held) > MOST_SEQUENCE_BYTES:
                    self._held = self._held[:2] + b"?" + self._held[-1:]
                return b""
            if data[begin:at] == _PASTE_BEGIN:
                self._pasted = bytearray()
                return data[at:]
            yield from self._type(data[begin:at])
        if at < len(data):
            yield from self._type_text(data[at:], is_whole=False)
        return b""

    def _type_text(self, data: bytes, is_whole: bool = True) -> Iterator[Message]:
        """Take text of one read.

        It is keys, or lines that a terminal without marks for pastes sends at once.
        """
        is_burst = (
            self._is_in_burst
            or len(data) > MOST_TYPED_BYTES
            or _SEVERAL_LINES.match(data) is not None
        )
        if not (is_burst and _TEXT_ONLY.fullmatch(data)):
            yield from self._type(data, is_whole)
            return
        self._is_in_burst = True
        text = self._decoder.decode(data, is_whole)
        if text:
            yield _paste_of(text)

    def _type(self, data: bytes, is_whole: bool = True) -> Iterator[Message]:
        """Let Textual see text or one sequence; what is whole is not continued by what follows."""
        is_text = not data.startswith(ESC)
        shown = self._decoder.decode(data if is_text else b"", is_whole) + (
            "" if is_text else harmless(data)
        )
        if shown:  # Textual takes none for the end of everything
            yield from self._keys.feed(shown)
        if self._keys._timeout_time is not None:
            self._keys._timeout_time = 0.0
            yield from self._keys.tick()

    def _take_pasted(self, data: bytes) -> Generator[Message, None, bytes]:
        """Take what belongs to the paste; returns what comes after it."""
        assert self._pasted is not None
        overlap = len(_PASTE_END) - 1
        searched = max(0, len(self._pasted) - overlap)
        self._pasted += data
        end = self._pasted.find(_PASTE_END, searched)
        if end < 0:
            del self._pasted[MOST_PASTE_BYTES : max(MOST_PASTE_BYTES, len(self._pasted) - overlap)]
            return b""
        pasted = self._pasted[:end]
        rest = bytes(self._pasted[end + len(_PASTE_END) :])
        self._pasted = None
        self._is_unended = False
        self._n_kept = 0
        if pasted:
            yield _paste(pasted)
        return rest

    def _look_after_paste(self, pasted: bytearray, quiet_s: float) -> Iterator[Message]:
        """Hand a paste over that goes on for too long without its end, and find out whether it has
        one."""
        if self._is_unended:
            patience_s = KEY_PAUSE_S
        else:
            patience_s = PASTE_PATIENCE_S
        if quiet_s < patience_s or (self._is_unended and len(pasted) == self._n_kept):
            return
        if self._is_unended and _ONE_KEY.fullmatch(pasted):
            self._pasted = None
            self._is_unended = False
            self._n_kept = 0
            yield from self.feed(bytes(pasted))
            return
        self._n_kept = next(
            (n for n in range(len(_PASTE_END), 0, -1) if pasted.endswith(_PASTE_END[:n])), 0
        )
        whole = pasted[: len(pasted) - self._n_kept]
        del pasted[: len(whole)]
        if whole:
            yield _paste(whole)
        if not self._is_unended:
            self._is_unended = True
            yield PasteUnended()


def _paste(pasted: bytes | bytearray) -> Message:
    return _paste_of(pasted.decode("utf-8", "replace"))


def _paste_of(text: str) -> Message:
    """Make what was pasted harmless: terminals send a line break as CR, and control characters are
    shown."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if len(text) > MAX_PASTE_CHARS:
        return PasteRefused()
    return Paste(clean_text(text))


class TerminalDriver(LinuxDriver):
    """Textual's driver, with ``TerminalInput`` between it and the terminal."""

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
        # Kept while the terminal is lent or the process stopped: a paste that is interrupted so is
        # still one.
        self._input = TerminalInput(debug=debug)
        self.keeps_typed = False
        """Whether what waits to be read stays there while input is disabled: Textual drops it."""

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return the size that the terminal reports, within limits.

        Memory is taken for each of its cells.
        """
        return bounded_size(*super()._get_terminal_size())

    def disable_input(self) -> None:
        """End the thread that reads."""
        if not self.keeps_typed:
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
                if selector.select(_LOOK_PERIOD_S):
                    data = _read(self.fileno)
                    # the system itself tells only the one who has it as controlling terminal
                    if not data:
                        os.kill(os.getpid(), signal.SIGHUP)
                        return
                    self._process(self._input.feed(data))
                self._process(self._input.tick())

    def _process(self, messages: Iterator[Message]) -> None:
        for message in messages:
            self.process_message(message)


def _read(handle: int) -> bytes:
    """Return what a terminal sends next; nothing where it is gone."""
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
