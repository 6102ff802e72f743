"""Graphics of the terminal: pictures by Kitty's protocol or as sixels, where it has them.

The terminal is asked when the first picture is shown. Until it answers, and where it does not,
pictures are half blocks. Its answers arrive among the keys, where ``TerminalInput`` takes them out,
so a late one is never typed into the prompt.

Each cell of a picture is a private character in what Textual draws. Textual scrolls, cuts and
covers it like other text, and the driver replaces it in what it writes.
"""

from __future__ import annotations

import os
import random
import re
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from textual.message import Message

from app.documents.thumbnails import Thumbnail
from app.text.glyphs import is_console
from app.tui.drawing import kitty

if TYPE_CHECKING:
    from app.tui.drawing.sixel import SixelPicture

MOST_PICTURES = 64
"""Limit on the pictures that the terminal holds."""
MOST_CELLS = 256
"""Limit on the cells of a picture."""
_MOST_PIXELS = 1 << 17
"""Limit on the pixels of a picture; a larger one is sent smaller or drawn as half blocks."""
_FIRST_CELL: Final = 0x10A000
"""Code of the first private character for a cell; fonts have icons at lower ones."""
_CELLS = re.compile(f"[{chr(_FIRST_CELL)}-{chr(_FIRST_CELL + MOST_PICTURES * MOST_CELLS - 1)}]+")
_USUAL_CELL: Final = 10, 20

_QUESTION: Final = "\x1b[>0q\x1b[16t\x1b[c"
"""Questions for the name of the terminal, the size of a cell, and what the terminal has. Every
terminal answers the last one."""
_CELL_QUESTION: Final = "\x1b[16t"
_NAME = re.compile(rb"\x1bP>\|([ -~]{1,200})\x1b\\")
_CELL = re.compile(rb"\x1b\[6;(\d{1,4});(\d{1,4})t")
_ATTRIBUTES = re.compile(rb"\x1b\[\?(\d[\d;]{0,200})c")
_KITTY_ANSWER = re.compile(rb"\x1b_Gi=(\d{1,10})[^;]{0,80};([ -~]{0,200})\x1b\\")
_ANSWERS = (_NAME, _CELL, _ATTRIBUTES, _KITTY_ANSWER)
_MAX_ANSWER_BYTES = 512
_SIXELS: Final = b"4"
_PLACEHOLDER_NAMES = re.compile(rb"kitty\((\d+)\.(\d+)|ghostty\b")
_FIRST_KITTY: Final = 0, 28
"""First version of Kitty with placeholders."""
_MULTIPLEXER_TERMS = ("screen", "tmux")
_MULTIPLEXERS = ("TMUX", "STY", "ZELLIJ")
"""Variables that multiplexers set."""


def is_answer(sequence: bytes) -> bool:
    """Return whether a sequence from the terminal is an answer about graphics."""
    return len(sequence) <= _MAX_ANSWER_BYTES and any(
        pattern.fullmatch(sequence) for pattern in _ANSWERS
    )


def may_ask(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal may be asked.

    A multiplexer draws no graphics of its programs. Terminal.app of macOS shows parts of questions
    that it does not know.
    """
    term = environ.get("TERM", "")
    return not (
        is_console(environ)
        or "NO_COLOR" in environ
        or term in ("", "dumb")
        or term.startswith(_MULTIPLEXER_TERMS)
        or any(name in environ for name in _MULTIPLEXERS)
        or environ.get("TERM_PROGRAM") == "Apple_Terminal"
    )


class GraphicsAnswer(Message):
    """An answer of the terminal about graphics.

    Attributes:
        sequence: its bytes.
    """

    def __init__(self, sequence: bytes) -> None:
        super().__init__()
        self.sequence = sequence


class Protocol(Enum):
    """How pictures are drawn."""

    HALF_BLOCKS = auto()
    KITTY = auto()
    SIXEL = auto()


@dataclass
class _Picture:
    """A picture that the terminal holds."""

    slot: int
    columns: int
    rows: int
    thumbnail: Thumbnail
    sixels: SixelPicture | None
    is_shown: bool
    """Whether the terminal can show it; Kitty says so for each picture."""


PictureKey = Hashable
"""Name of a picture; previews are their own."""


class TerminalGraphics:
    """Graphics of a terminal.

    Args:
        write: writes to the terminal.
        read_cell_size: returns width and height of a cell in pixels as the system knows them;
            None if it does not.
        may_ask: whether the terminal may be asked what it has.
        first_id: number of the first picture in Kitty's protocol; other programs in the same
            window number theirs, too.

    Attributes:
        is_asked: whether the terminal was asked what it has.
        protocol: how pictures are drawn.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        read_cell_size: Callable[[], tuple[int, int] | None],
        may_ask: bool,
        first_id: int | None = None,
    ) -> None:
        self._write = write
        self._read_cell_size = read_cell_size
        self._may_ask = may_ask
        self._first_id = first_id or random.randrange(1 << 16, kitty.MAX_ID - MOST_PICTURES)
        self.is_asked = False
        self._name = b""
        self._has_sixels = False
        self._cell: tuple[int, int] | None = None
        self._pictures: OrderedDict[PictureKey, _Picture] = OrderedDict()
        """Pictures by their keys; that drawn longest ago is the first."""
        self._is_released = False
        """Whether another program has the terminal, or gets it."""
        self.protocol = Protocol.HALF_BLOCKS

    # ---- what the terminal has

    def ask(self) -> None:
        """Ask the terminal what it has, the first time."""
        if self._may_ask and not self.is_asked:
            self.is_asked = True
            self._cell = self._read_cell_size()
            self._write(_QUESTION)

    def take(self, sequence: bytes) -> bool:
        """Take an answer; return whether pictures are drawn in another way now."""
        if not self.is_asked:
            return False
        if name := _NAME.fullmatch(sequence):
            self._name = name[1]
        elif cell := _CELL.fullmatch(sequence):
            if self._read_cell_size() is None:
                return self._change_cell(_plausible(int(cell[2]), int(cell[1])))
        elif attributes := _ATTRIBUTES.fullmatch(sequence):
            self._has_sixels = _SIXELS in attributes[1].split(b";")[1:]
            return self._choose_protocol()
        elif answer := _KITTY_ANSWER.fullmatch(sequence):
            return self._confirm(int(answer[1]), answer[2] == b"OK")
        return False

    def resize(self) -> bool:
        """Look for another size of the cells; return whether pictures are drawn in another way."""
        if self.protocol is not Protocol.SIXEL:
            return False
        cell = self._read_cell_size()
        if cell is None:
            self._write(_CELL_QUESTION)
            return False
        return self._change_cell(cell)

    def _choose_protocol(self) -> bool:
        before = self.protocol
        placeholders = _PLACEHOLDER_NAMES.match(self._name)
        if placeholders is not None:
            version = tuple(int(number) for number in placeholders.groups() if number)
            if not version or version >= _FIRST_KITTY:
                self.protocol = Protocol.KITTY
        elif self._has_sixels and self._cell:
            self.protocol = Protocol.SIXEL
        return self.protocol is not before

    def _change_cell(self, cell: tuple[int, int] | None) -> bool:
        """Note the size of a cell. Sixels of another size are dropped."""
        if cell is None or cell == self._cell:
            return False
        self._cell = cell
        if self.protocol is not Protocol.SIXEL:
            return self._choose_protocol() if self._has_sixels else False
        self._pictures.clear()
        return True

    def _confirm(self, number: int, is_shown: bool) -> bool:
        """Note whether the terminal can show a picture that was sent."""
        for key, picture in self._pictures.items():
            if self._first_id + picture.slot == number:
                if not is_shown:
                    del self._pictures[key]
                    return picture.is_shown
                has_changed = not picture.is_shown
                picture.is_shown = True
                return has_changed
        return False

    # ---- pictures

    def pixel_size(self, columns: int, rows: int) -> tuple[int, int] | None:
        """Return width and height at which a preview of a size in cells is to be held; None if it
        is to be drawn as half blocks."""
        if self.protocol is Protocol.HALF_BLOCKS or columns * rows > MOST_CELLS:
            return None
        if max(columns, rows) > kitty.MOST_LINES:
            return None
        width, height = self._cell or _USUAL_CELL
        while columns * width * rows * height > _MOST_PIXELS:
            if self.protocol is Protocol.SIXEL:
                return None
            width = (width + 1) // 2
            height = (height + 1) // 2
        return columns * width, rows * height

    def encode(self, thumbnail: Thumbnail, columns: int, rows: int) -> SixelPicture | None:
        """Return the sixels of a picture; None if none are needed. This may take a while."""
        if self.protocol is not Protocol.SIXEL:
            return None
        from app.tui.drawing.sixel import SixelPicture

        return SixelPicture(thumbnail, (thumbnail.width // columns, thumbnail.height // rows))

    def hold(
        self,
        key: PictureKey,
        cells: tuple[int, int],
        thumbnail: Thumbnail,
        sixels: SixelPicture | None,
    ) -> None:
        """Hold a picture for drawing, and drop that drawn longest ago if there are too many.

        Args:
            cells: columns and rows of its preview.
            thumbnail: the picture in the size that ``pixel_size`` gave.
            sixels: those that ``encode`` gave.
        """
        columns, rows = cells
        if (thumbnail.width, thumbnail.height) != self.pixel_size(columns, rows):
            return  # the cells have another size since it was read
        self.drop(key)
        if len(self._pictures) >= MOST_PICTURES:
            self.drop(next(iter(self._pictures)))
        used = {picture.slot for picture in self._pictures.values()}
        slot = next(slot for slot in range(MOST_PICTURES) if slot not in used)
        is_shown = self.protocol is not Protocol.KITTY
        self._pictures[key] = _Picture(slot, columns, rows, thumbnail, sixels, is_shown)
        self._send(self._pictures[key])

    def drop(self, key: PictureKey) -> None:
        """Drop a picture, if it is held."""
        picture = self._pictures.pop(key, None)
        if picture is not None:
            self._delete(picture)

    def row(self, key: PictureKey, row: int) -> str:
        """Return the characters for the cells of a row; empty if the picture is not held."""
        picture = self._pictures.get(key)
        if picture is None or not picture.is_shown:
            return ""
        self._pictures.move_to_end(key)
        first = _FIRST_CELL + picture.slot * MOST_CELLS + row * picture.columns
        return "".join(map(chr, range(first, first + picture.columns)))

    def release(self) -> None:
        """Delete the pictures in the terminal, which another program gets."""
        for picture in self._pictures.values():
            self._delete(picture)
        self._is_released = True

    def restore(self) -> None:
        """Send the pictures again after another program had the terminal."""
        self._is_released = False
        for picture in self._pictures.values():
            self._send(picture)

    def _send(self, picture: _Picture) -> None:
        if self.protocol is Protocol.KITTY and not self._is_released:
            number = self._first_id + picture.slot
            self._write(
                kitty.transmission(number, picture.thumbnail, picture.columns, picture.rows)
            )

    def _delete(self, picture: _Picture) -> None:
        if self.protocol is Protocol.KITTY and not self._is_released:
            self._write(kitty.deletion(self._first_id + picture.slot))

    # ---- drawing

    def expand(self, text: str) -> str:
        """Return what Textual writes, with the cells of pictures in the terminal's own form."""
        if not self._pictures:
            return text
        return _CELLS.sub(self._expand_cells, text)

    def _expand_cells(self, cells: re.Match[str]) -> str:
        by_slot = {picture.slot: picture for picture in self._pictures.values()}
        parts = []
        codes = [ord(cell) - _FIRST_CELL for cell in cells[0]]
        for start, end in pairwise(_starts(codes, by_slot)):
            slot, first = divmod(codes[start], MOST_CELLS)
            n_cells = end - start
            picture = by_slot.get(slot)
            if picture is None or first >= picture.columns * picture.rows:
                parts.append(" " * n_cells)
            else:
                row, column = divmod(first, picture.columns)
                parts.append(self._cells(picture, row, column, n_cells))
        return "".join(parts)

    def _cells(self, picture: _Picture, row: int, column: int, n_cells: int) -> str:
        """Return the drawing of neighbouring cells of a row."""
        last = column + n_cells - 1
        if picture.sixels is None:
            return kitty.cells(self._first_id + picture.slot, row, column, last)
        # Blanks replace the text that was there. The cursor returns after them and after the
        # sixels, since terminals differ in where these leave it.
        sixels = picture.sixels.row(row, column, last)
        return f"\x1b7{' ' * n_cells}\x1b8{sixels}\x1b8\x1b[{n_cells}C"


def _starts(codes: list[int], by_slot: Mapping[int, _Picture]) -> list[int]:
    """Return where runs of neighbouring cells of one row start, and the end of the last run."""
    starts = [0]
    for index, (code, following) in enumerate(pairwise(codes), 1):
        slot, cell = divmod(following, MOST_CELLS)
        picture = by_slot.get(slot)
        begins_row = picture is not None and cell % picture.columns == 0
        if following != code + 1 or begins_row or cell == 0:
            starts.append(index)
    return [*starts, len(codes)]


def _plausible(width: int, height: int) -> tuple[int, int] | None:
    """Return the size of a cell, if it can be one."""
    if 2 <= width <= 100 and 4 <= height <= 200:
        return width, height
    return None


def cell_size(columns: int, rows: int, width: int, height: int) -> tuple[int, int] | None:
    """Return the size of a cell, given the size of the screen in cells and in pixels."""
    if columns < 1 or rows < 1:
        return None
    return _plausible(width // columns, height // rows)
