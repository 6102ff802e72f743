"""Input of the terminal, told apart: keys and reports, pasted text, and keys typed before the screen was up.

Textual 8.2 lets an ESC inside a paste press keys, and ends over one byte that is not UTF-8. Here a paste is taken out
of the bytes before Textual's parser sees it. Remove the part about pastes when that parser ends them at their end mark
only, and ``TerminalDriver`` when its driver decodes with replacement as well.
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

from app.text.clean_text import clean_text
from app.tui.draft import MAX_PASTE_CHARS
from app.tui.messages import PasteRefused, PasteUnended

_PASTE_BEGIN: Final = b"\x1b[200~"
_PASTE_END: Final = b"\x1b[201~"
_MARK = re.compile(rb"\x1b\[200~|\x1b\[M[\x20-\xff]{3}")
"""Where a paste begins; and mouse reports of the oldest kind, whose bytes are no text: nothing here uses them."""
_BEGUN_MARK = re.compile(rb"\x1b(?:\[(?:20{0,2}|M[\x20-\xff]{0,2})?)?\Z")
_KEYS_TOO = (b"\x1b", b"\x1b[")
"""Of the beginnings of a mark those that are keys as well, Esc and alt+[, if nothing follows soon."""

_LAST_LINE_END = re.compile(rb"\n(?=(?:\x1b\[[0-?]*[ -/]*[@-~])*\Z)")

MOST_PASTE_BYTES = 4 * (MAX_PASTE_CHARS + 1)
"""Limit on a paste; the rest is dropped. At four bytes a character it is more than ``MAX_PASTE_CHARS``."""
PASTE_PATIENCE_S = 3.0
"""Seconds without a byte after which the beginning of a paste is handed over; later bytes are still part of it."""
KEY_PAUSE_S = 0.5
"""Seconds of silence after a single key that end the paste: the key and what follows it are keys. Text contains no such
pause, and a paste that was only held up continues or ends."""
_ONE_KEY = re.compile(
    rb"\x1b|\x1b?[^\x1b]|[\xc2-\xf4][\x80-\xbf]{1,3}|\x1bO[A-Za-z]|\x1b\[[0-9;:]{0,12}[A-Za-z~]", re.DOTALL
)

_LOOK_PERIOD_S = 0.1
_READ_BYTES = 1 << 16


class TerminalInput:
    """Turns the bytes of a terminal into Textual's messages; ``debug`` lets Textual's parser write its log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, debug: bool = False) -> None:
        self._clock = clock
        self._keys = XTermParser(debug)
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._held = b""
        """Bytes that may be the beginning of a mark."""
        self._passed_on = b""
        """The same after it has counted as a key because nothing followed soon."""
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
        self._came_s = self._clock()
        if self._passed_on and data.startswith(_PASTE_BEGIN.removeprefix(self._passed_on)):
            self._held = self._passed_on  # the mark was only held up on its way
        self._passed_on = b""
        data, self._held = self._held + data, b""
        while data:
            data = yield from (self._take_typed(data) if self._pasted is None else self._take_pasted(data))

    def feed_typed_ahead(self, data: bytes) -> Iterator[Message]:
        r"""Take what was typed before the terminal was told to send Enter as ``\r``.

        Only the last line end is Enter: lines that were pasted meanwhile came without marks, and must not be sent one
        by one. Reports of the terminal, such as that it has the focus, may stand behind it.
        """
        end = _LAST_LINE_END.search(data) if self._pasted is None else None
        if end is not None:
            data = data[: end.start()] + b"\r" + data[end.start() + 1 :]
        return self.feed(data)

    def tick(self) -> Iterator[Message]:
        """Note that time has passed; call it every tenth of a second."""
        quiet_s = self._clock() - self._came_s
        if self._pasted is not None:
            yield from self._look_after_paste(self._pasted, quiet_s)
        elif self._held in _KEYS_TOO and quiet_s >= constants.ESCAPE_DELAY:
            self._passed_on, self._held = self._held, b""
            yield from self._type(self._passed_on)
            self._keys._timeout_time = 0.0  # it has waited for what follows already
        yield from self._keys.tick()

    def _take_typed(self, data: bytes) -> Generator[Message, None, bytes]:
        """Take what stands before a mark; returns what stands behind it."""
        mark = _MARK.search(data)
        if mark is None:
            begun = _BEGUN_MARK.search(data)
            end = begun.start() if begun else len(data)
            self._held = data[end:]
            yield from self._type(data[:end])
            return b""
        yield from self._type(data[: mark.start()], is_whole=True)
        if mark[0] == _PASTE_BEGIN:
            self._pasted = bytearray()
        return data[mark.end() :]

    def _type(self, data: bytes, is_whole: bool = False) -> Iterator[Message]:
        """Let Textual see keys and reports; the parser begins anew behind what is whole."""
        # The end mark of a paste, without a paste, makes the parser drop what is incomplete.
        text = self._decoder.decode(data, is_whole) + (_PASTE_END.decode("ascii") if is_whole else "")
        if text:  # Textual takes none for the end of everything
            yield from self._keys.feed(text)

    def _take_pasted(self, data: bytes) -> Generator[Message, None, bytes]:
        """Take what belongs to the paste; returns what stands behind it."""
        assert self._pasted is not None
        overlap = len(_PASTE_END) - 1
        searched = max(0, len(self._pasted) - overlap)
        self._pasted += data
        end = self._pasted.find(_PASTE_END, searched)
        if end < 0:
            del self._pasted[MOST_PASTE_BYTES : max(MOST_PASTE_BYTES, len(self._pasted) - overlap)]
            return b""
        pasted, rest = self._pasted[:end], bytes(self._pasted[end + len(_PASTE_END) :])
        self._pasted, self._is_unended, self._n_kept = None, False, 0
        if pasted:
            yield _paste(pasted)
        return rest

    def _look_after_paste(self, pasted: bytearray, quiet_s: float) -> Iterator[Message]:
        """Hand a paste over that goes on for too long without its end, and find out whether it has one."""
        patience_s = KEY_PAUSE_S if self._is_unended else PASTE_PATIENCE_S
        if quiet_s < patience_s or (self._is_unended and len(pasted) == self._n_kept):
            return
        if self._is_unended and _ONE_KEY.fullmatch(pasted):
            self._pasted, self._is_unended, self._n_kept = None, False, 0
            yield from self.feed(bytes(pasted))
            return
        self._n_kept = next((n for n in range(len(_PASTE_END), 0, -1) if pasted.endswith(_PASTE_END[:n])), 0)
        whole = pasted[: len(pasted) - self._n_kept]
        del pasted[: len(whole)]
        if whole:
            yield _paste(whole)
        if not self._is_unended:
            self._is_unended = True
            yield PasteUnended()


def _paste(pasted: bytes | bytearray) -> Message:
    """Make what was pasted harmless: terminals send a line break as CR, and control characters are shown."""
    text = pasted.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    return PasteRefused() if len(text) > MAX_PASTE_CHARS else Paste(clean_text(text))


class TerminalDriver(LinuxDriver):
    """Textual's driver, with ``TerminalInput`` between it and the terminal."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        # Kept while the terminal is lent or the process stopped: a paste that is interrupted so is still one.
        self._input = TerminalInput(debug=debug)
        self.keeps_typed = False
        """Whether what waits to be read stays there while input is disabled: Textual drops it."""

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
                    if not data:  # the system itself tells only whoever has it as controlling terminal
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
    return os.read(handle, n_bytes) if n_bytes > 0 else b""


def _fail(error: BaseException) -> None:
    raise error
