"""Previews of pictures: by the terminal's own graphics, else half blocks in colour, or shades where
there are no colours."""

from __future__ import annotations

import os
from asyncio import wrap_future
from collections.abc import Sequence
from functools import partial

from rich.segment import Segment
from rich.style import Style
from textual.containers import Horizontal
from textual.strip import Strip
from textual.widget import Widget

from app.documents.pictures import PictureReference
from app.documents.thumbnails import Thumbnail, fitted, resized, thumbnail
from app.program.background import in_background
from app.text import glyphs
from app.tui.live_settings import LiveSettings
from app.tui.terminal_graphics import TerminalGraphics

HALF_BLOCK = "▀"
SHADES = " ░▒▓█"
ASCII_SHADES = " .:+#"
COLUMNS = 20
ROWS = 6
"""Size of a preview in a message, in characters."""
MOST_PREVIEWS = 4
"""Limit on the previews of a message."""


def has_colours() -> bool:
    """Return whether previews may use colours."""
    return "NO_COLOR" not in os.environ and not glyphs.is_console()


def row_of(picture: Thumbnail, row: int, colours: bool) -> Strip:
    """Return a row of a preview.

    Args:
        colours: whether it has colours; otherwise its characters are lighter or darker.
    """
    pairs = [
        (picture.colour(x, 2 * row), picture.colour(x, 2 * row + 1)) for x in _columns(picture)
    ]
    if colours:
        return Strip(
            Segment(HALF_BLOCK, Style(color=_hex(upper), bgcolor=_hex(lower)))
            for upper, lower in pairs
        )
    shades = SHADES
    if glyphs.choose_glyphs() is glyphs.ASCII:
        shades = ASCII_SHADES
    text = "".join(
        shades[min(len(shades) - 1, len(shades) * (_light(upper) + _light(lower)) // 512)]
        for upper, lower in pairs
    )
    return Strip([Segment(text)])


def _columns(picture: Thumbnail) -> range:
    return range(picture.width)


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _light(colour: tuple[int, int, int]) -> int:
    """Return how light a colour is, 0 to 255."""
    red, green, blue = colour
    return (299 * red + 587 * green + 114 * blue) // 1000


class PicturePreview(Widget):
    """Preview of a picture. Its pixels are read in the background.

    Attributes:
        digest: hash of the picture's file.
    """

    def __init__(self, reference: PictureReference, columns: int, rows: int) -> None:
        super().__init__(classes="picture-preview")
        self._cells = fitted(reference.size, columns, rows)
        self.digest = reference.digest
        self._thumbnail: Thumbnail | None = None
        self._is_requested = False
        """Whether the terminal was given the picture, or is to get it."""
        self.styles.width, self.styles.height = self._cells

    @property
    def has_pixels(self) -> bool:
        """Whether the pixels are read."""
        return self._thumbnail is not None

    def on_mount(self) -> None:
        """Begin to read the pixels."""
        self.run_worker(self._load())

    def on_unmount(self) -> None:
        """Drop the picture from the terminal."""
        graphics: TerminalGraphics | None = getattr(self.app, "graphics", None)
        if graphics is not None:
            graphics.drop(self)

    async def _load(self) -> None:
        load = partial(thumbnail, self.digest, *self._cells)
        self._thumbnail = await wrap_future(in_background(load, "preview"))
        self.refresh()

    @property
    def _graphics(self) -> TerminalGraphics | None:
        """Graphics of the terminal; None if the settings or a test do without."""
        live: LiveSettings | None = getattr(self.app, "live", None)
        if live is None or live.now.pictures.preview != "on":
            return None
        graphics: TerminalGraphics | None = getattr(self.app, "graphics", None)
        return graphics

    async def _hold(self, graphics: TerminalGraphics) -> None:
        """Read the picture in the background at the size in which the terminal shows it."""
        columns, rows = self._cells
        size = graphics.pixel_size(columns, rows)
        if size is None:
            return
        picture = await wrap_future(in_background(partial(resized, self.digest, *size), "preview"))
        if picture is None:
            return
        encode = partial(graphics.encode, picture, columns, rows)
        sixels = await wrap_future(in_background(encode, "preview"))
        if self.is_attached:
            graphics.hold(self, self._cells, picture, sixels)
            self.refresh()

    def show_graphics(self) -> None:
        """Draw the picture with the terminal's graphics from now on, if it has any."""
        self._is_requested = False
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Render a row of the picture; a blank one until its pixels are read."""
        columns, rows = self._cells
        if self._thumbnail is None or y >= rows:
            return Strip.blank(columns)
        graphics = self._graphics
        if graphics is not None:
            graphics.ask()
            cells = graphics.row(self, y)
            if cells:
                return Strip([Segment(cells)])
            if not self._is_requested and graphics.pixel_size(columns, rows) is not None:
                self._is_requested = True
                self.run_worker(self._hold(graphics))
        return row_of(self._thumbnail, y, has_colours())


class PreviewRow(Horizontal):
    """Previews of the pictures of a message, next to each other."""

    def __init__(
        self, references: Sequence[PictureReference], columns: int = COLUMNS, rows: int = ROWS
    ) -> None:
        self._references = references[:MOST_PREVIEWS]
        previews = [PicturePreview(reference, columns, rows) for reference in self._references]
        super().__init__(*previews, classes="preview-row")

    def on_mount(self) -> None:
        """Hide the previews if the settings say so."""
        live: LiveSettings | None = getattr(self.app, "live", None)
        if live is not None and live.now.pictures.preview == "off":
            self.display = False
